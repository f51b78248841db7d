"""Padding anywhere in a row is moved behind its real tokens and back, and resets take effect where they would have."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lengthen.errors import InputError
from lengthen.models.padding import Compaction


@st.composite
def masks_and_resets(draw):
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    bits = st.lists(st.booleans(), min_size=rows * length, max_size=rows * length)
    return tuple(torch.tensor(draw(bits)).reshape(rows, length) for _ in range(2))


def counted(real, reset):
    """A recurrence that counts real tokens and starts again at a reset: what it counts at each, and in the end."""
    seen, at = 0, []
    for token, begins in zip(real.tolist(), reset.tolist()):
        seen = 0 if begins else seen
        if token:
            seen += 1
            at.append(seen)
    return at, seen


@given(masks_and_resets())
def test_a_recurrence_sees_the_same_tokens_and_resets(drawn):
    mask, reset = drawn
    found = Compaction.of(mask.long(), reset)
    packed = found.pack(torch.arange(mask.shape[1]).expand(mask.shape))
    for row, (real, begins) in enumerate(zip(mask, reset)):
        length = mask.shape[1] if found.lengths is None else int(found.lengths[row])
        assert packed[row, :length].tolist() == real.nonzero()[:, 0].tolist()
        at, seen = counted(torch.ones(length, dtype=torch.bool), found.reset[row, :length])
        if found.trailing_reset is not None and found.trailing_reset[row]:
            seen = 0
        assert (at, seen) == counted(real, begins)


@given(masks_and_resets())
def test_unpacking_undoes_packing_for_any_features(drawn):
    found = Compaction.of(drawn[0].long(), None)
    x = torch.randn(*drawn[0].shape, 3)
    assert torch.equal(found.unpack(found.pack(x)), x)
    assert torch.equal(found.unpack((found.pack(x), found.pack(x[..., 0])))[1], x[..., 0])


def test_nothing_moves_without_padding_or_with_all_of_it_on_the_right():
    assert Compaction.of(None, None) == Compaction.of(torch.ones(2, 3), None) == Compaction(*[None] * 5)
    right = Compaction.of(torch.tensor([[1, 1, 0], [1, 0, 0]]), None)
    assert right.order is None and right.lengths.tolist() == [2, 1]


def test_masks_and_resets_of_another_kind_are_refused():
    with pytest.raises(InputError, match=r"^reset is torch\.int64; give bool"):
        Compaction.of(None, torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(InputError, match=r"^attention_mask holds values other than 0 and 1"):
        Compaction.of(torch.tensor([[0, 2]]), None)
