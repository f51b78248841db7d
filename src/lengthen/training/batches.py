"""Windows as the trainer takes them: micro-batches of a process's own lanes, from any step on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from lengthen.data import Windows
from lengthen.data.arrays import IGNORED


class MicroBatches(IterableDataset):
    """The windows of this process, each step's lanes cut into equal micro-batches.

    windows: of this rank. accumulation: micro-batches a step. steps: the first to give, and the one to stop before.
    A batch's labels are called shift_labels, since windows shift them beforehand; the Trainer counts those that are not
    -100, where labels stand too, which go no further. Float targets are called targets, and shift_labels then say
    which positions count.
    """

    def __init__(self, windows: Windows, accumulation: int, steps: range) -> None:
        self.windows, self.accumulation, self.steps = windows, accumulation, steps

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.windows.seek(self.steps.start)
        for _, batch in zip(self.steps, self.windows):
            named = {**batch, "shift_labels": batch["labels"]}
            if batch["labels"].is_floating_point():
                mask = batch.get("attention_mask", torch.ones(batch["labels"].shape[:2], dtype=torch.long))
                named |= {"targets": batch["labels"], "shift_labels": mask.masked_fill(mask == 0, IGNORED)}
            rows = len(batch["lane"]) // self.accumulation
            for i in range(self.accumulation):
                yield {name: part(value, i * rows, rows) for name, value in named.items()}


def part(value: Tensor, first: int, rows: int) -> Tensor:
    """Rows first, ..., first + rows - 1."""
    return value[first : first + rows]
