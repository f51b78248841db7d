"""What a training run did, and what one will take."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from lengthen.results.base import Result


@dataclass(frozen=True)
class TrainingRecord(Result):
    """One training run: what was done, the loss per step, the time.

    passes: how many times over the text was read: the windows' positions over those of the text; NaN: not recorded.
    """

    intervention: str
    steps: int
    train_context: int
    rows: int
    learning_rate: float
    seed: int
    seconds: float
    losses: list[float]
    model: str
    out: str
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    passes: float = math.nan


@dataclass(frozen=True)
class TrainingPlan(Result):
    """A run's size. Bytes are of one process, which takes `rows` of the step's rows at a time.

    weights, gradients, optimiser (two moments): parameters times their size, shared by the processes where the model is
    sharded. states: a row's state times the rows at hand, once going in and once coming out. bank: a row's state times
    the process's lanes, where the intervention keeps states. activations: twice what every linear layer of a block
    reads and writes, per position (what autograd keeps is 1.2 to 2.4 times that, by family); with checkpointing the
    blocks' inputs, and one block's. It leaves out what kernels and allocators take for a moment.
    """

    model: str
    parameters: int
    processes: int
    sharded: bool
    steps: int
    tokens: int
    tokens_a_step: int
    rows: int
    state_bytes_a_row: int
    weights: int
    gradients: int
    optimiser: int
    states: int
    bank: int
    activations: int
    memory: int
