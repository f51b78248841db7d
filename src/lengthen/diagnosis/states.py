"""What the recurrent state looks like at a position, per layer and head.

n rows, H heads over all layers and tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lengthen.results import HeadState
from lengthen.state import RecurrentState, heads_of

STATISTICS = ("mean", "std", "largest", "norm")

Statistics = NDArray[np.float64]
"""[n, H, 4]: of each row and head, the STATISTICS over its entries."""
Head = tuple[str, str, int]
"""Layer, tensor and head."""


def head_statistics(state: RecurrentState) -> Statistics:
    """The statistics of every head, in the order of heads()."""
    found = []
    for _, _, entries in _entries(state):
        mean = entries.mean(-1, dtype=torch.float64)
        norm = torch.linalg.vector_norm(entries, dim=-1, dtype=torch.float64)
        std = (norm.square() / entries.shape[-1] - mean.square()).clamp_min(0).sqrt()
        largest = torch.linalg.vector_norm(entries, ord=math.inf, dim=-1, dtype=torch.float64)
        found.append(torch.stack([mean, std, largest, norm], -1))
    return torch.cat(found, 1).cpu().numpy()


def heads(state: RecurrentState) -> list[Head]:
    """The heads of a state's recurrent tensors, layer by layer."""
    return [(layer, name, head) for layer, name, entries in _entries(state) for head in range(entries.shape[1])]


def _entries(state: RecurrentState) -> Iterator[tuple[str, str, Tensor]]:
    """Layer, tensor and its entries [n, heads, entries] for every recurrent tensor."""
    for layer, named in state.tensors.items():
        for name, tensor in named.items():
            if (spec := state.specs[layer][name]).kind == "recurrent":
                yield layer, name, heads_of(tensor.detach(), spec)


def head_states(position: int, named: list[Head], statistics: Statistics) -> list[HeadState]:
    """The state before input `position`, one entry per layer, tensor and head, over all rows."""
    found = []
    for head, rows in zip(named, statistics.swapaxes(0, 1)):
        mean, std, largest, norm = rows.T
        centre = mean.mean()
        with np.errstate(invalid="ignore"):  # of a state that overflowed
            spread = np.sqrt(np.maximum(0.0, (std**2 + mean**2).mean() - centre**2))
        found.append(
            HeadState(
                position, *head, float(centre), float(spread), float(np.sqrt((norm**2).mean())), float(largest.max())
            )
        )
    return found
