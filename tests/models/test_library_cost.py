"""What a long sequence costs the installed transformers' own path on a CPU, and a wrapped model: counted, not timed.

Numbers written a position are what its time and memory follow, and the same on every machine.
"""

from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lengthen import wrap
from tests.models.family_properties import builder


class Written(TorchDispatchMode):
    """Counts the entries of every tensor that an operation makes: all together, and of the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = self.largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for made in tree_leaves(output):
            if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in given:
                self.entries += made.numel()
                self.largest = max(self.largest, made.numel())
        return output


def written(model: Any, positions: int) -> tuple[float, float]:
    """Entries written by a training step of one row, and of its largest tensor, both a position."""
    ids = torch.randint(3, 64, (1, positions), generator=torch.Generator().manual_seed(0))
    with Written() as count:
        model(ids, labels=ids, use_cache=False).loss.backward()
    return count.entries / positions, count.largest / positions


def growth(model: Any) -> float:
    """How much more a position costs where there are four times as many."""
    return written(model, 256)[0] / written(model, 64)[0]


@pytest.mark.skipif(not transformers.__version__.startswith("5.25."), reason="states what transformers 5.25 does")
@pytest.mark.parametrize("name", ["Mamba", "FalconMamba", "Jamba"])
def test_a_position_costs_mamba_1_the_more_the_longer_the_text(name: str) -> None:
    """Its loop cuts slices out of whole tensors, and the backward pass makes a whole tensor of each."""
    model = builder(name, {})().train()
    assert growth(model) > 3
    assert growth(wrap(model)) < 1.1


@pytest.mark.skipif(not transformers.__version__.startswith("5.25."), reason="states what transformers 5.25 does")
def test_mamba_2_s_largest_tensor_is_as_wide_as_its_chunk() -> None:
    """It holds every pair of positions of a chunk, 256 as its configuration has it, for every head."""
    model = builder("Mamba2", {"chunk_size": 256})().train()
    heads, projected = 4, 164  # channels of in_proj, the widest of what a layer holds a position
    entries, largest = written(model, 512)
    assert largest >= 256 * heads
    entries_of_ours, largest_of_ours = written(wrap(model), 512)
    assert largest_of_ours <= projected and entries_of_ours < entries / 5
