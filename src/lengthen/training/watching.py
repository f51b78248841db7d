"""Watching a run: what probes find of the model on the way goes to its log, and may end it early.

A probe is any function from the model to named numbers; the trainer knows no more of it. StreamedLoss is the usual one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from lengthen.data import Corpus, HeldOutSequences
from lengthen.errors import InputError
from lengthen.streaming import reset_losses, stream
from lengthen.training.processes import first_decides
from lengthen.training.resuming import ResumableTrainer

Probe = Callable[[nn.Module], Mapping[str, float]]

CONTEXTS = 16
"""How many training contexts StreamedLoss reads; the second half of them is far."""
SEQUENCES = 4


@dataclass(frozen=True)
class Watch:
    """Probes to call every so many steps, and what of their findings is enough to end the run (None: nothing is)."""

    probes: Sequence[Probe]
    steps: int = 25
    enough: Callable[[Mapping[str, float]], bool] | None = None

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"The steps between two looks at the model are {self.steps}; give at least 1.")


class Watching(TrainerCallback):
    """Calls the probes after every `watch.steps` steps, on every process; a run that is ended early is saved first."""

    def __init__(self, trainer: ResumableTrainer, watch: Watch) -> None:
        self.trainer, self.watch = trainer, watch

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.watch.steps:
            return
        assert self.trainer.model is not None
        found = {name: value for probe in self.watch.probes for name, value in probe(self.trainer.model).items()}
        due = control.should_log
        self.trainer.log(dict(found))
        control.should_log = due  # a line of findings is not the step's own line
        enough = self.watch.enough
        if enough is not None and first_decides(lambda: enough(found)):
            control.should_training_stop = True
            control.should_save = args.save_strategy != "no"


class StreamedLoss:
    """Probe: the loss of a few held-out sequences of 16 T in context and far, and how large the states are there.

    corpus: held-out text. train_context: T. Finds, per token in nats, in_context_loss over positions
    [0, T) and far_loss over [8 T, 16 T), the state carried; in_context_state and far_state: the mean Euclidean norm of a
    head's state at T and at 16 T. Raises InputError where no document is long enough.
    """

    def __init__(self, corpus: Corpus, train_context: int, seed: int = 0) -> None:
        self.train_context = train_context
        self.tokens = HeldOutSequences(corpus, length=CONTEXTS * train_context, count=SEQUENCES, seed=seed)

    def __call__(self, model: nn.Module) -> dict[str, float]:
        context, far = self.train_context, CONTEXTS // 2 * self.train_context
        sums, found = torch.zeros(2, dtype=torch.float64), {}
        for segment in stream(model, self.tokens, cuts=(context, far)):
            loss = float(segment.losses.double().sum())
            if segment.end <= context:
                sums[0] += loss
            elif segment.start >= far:
                sums[1] += loss
            if segment.end in (context, CONTEXTS * context):
                name = "in_context_state" if segment.end == context else "far_state"
                statistics = segment.final_state.statistics()
                norms = [s["norm"].mean() for named in statistics.values() for s in named.values()]
                found[name] = float(torch.stack(norms).mean())
        rows = len(self.tokens)
        return {
            "in_context_loss": float(sums[0]) / (rows * context),
            "far_loss": float(sums[1]) / (rows * (CONTEXTS * context - far)),
            **found,
        }

    def reset_loss(self, model: nn.Module) -> float:
        """The loss over the far positions with the state zeroed every T inputs: what a run must reach to be repaired."""
        far, total = CONTEXTS // 2 * self.train_context, 0.0
        for start, losses in reset_losses(model, self.tokens, self.train_context):
            total += float(losses[:, max(0, far - start) :].double().sum())
        return total / (len(self.tokens) * (CONTEXTS * self.train_context - far))


def reached(reset_loss: float) -> Callable[[Mapping[str, float]], bool]:
    """Enough: the far loss is no higher than the reset baseline of the weights before post-training."""
    return lambda found: found["far_loss"] <= reset_loss
