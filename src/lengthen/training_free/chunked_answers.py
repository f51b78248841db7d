"""Prompts answered from the part of their text after which the model is most certain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lengthen.models.hooks import Hook
from lengthen.training_free.fitting import Calibration, HookMethod


@dataclass(frozen=True)
class OPRM(HookMethod):
    """A prompt's text in chunks, each run by itself between introduction and question; the answer follows on one of them.

    It is the one after which the next token's distribution has the least entropy. What stands in two chunks is never seen
    together. chunk: tokens of a row, introduction and question counted; T0 unless given, published are 1,000 to 3,000. The
    published filter of chunks that are answered with "Error" needs a model that was taught to, and is left out.
    Source: Ben-Kish et al., Overflow Prevention Enhances Long-Context Recurrent LLMs, arXiv 2505.07793.
    """

    name = "oprm"

    chunk: int | None = None

    def __post_init__(self) -> None:
        self.require_whole("chunk")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"query", "lanes"} | ({"train-context"} if self.chunk is None else set()))

    def measured(self, model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
        return {"chunk": torch.tensor(calibration.train_context if self.chunk is None else self.chunk)}

    def hook(self, tensors: Mapping[str, Tensor]) -> Hook:
        return _Chunking(self.name, int(tensors["chunk"]))


class _Chunking(Hook):
    """Changes nothing in a layer; prompts are run in chunks."""

    def __init__(self, name: str, chunk: int) -> None:
        self.name, self.chunk = name, chunk
