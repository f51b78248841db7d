"""What a library's path is judged with: the error of two tensors, the tolerance of a dtype, and a model put back."""

from __future__ import annotations

import math

import pytest
import torch

from lengthen.models.library_cache import LibraryPath
from lengthen.models.library_subject import LENGTH, SHORT, Subject, error, in_training, largest_error, shape_detail
from tests.models.toy_library import toy


def test_an_error_is_relative_to_the_largest_reference_and_infinite_between_shapes() -> None:
    reference = torch.tensor([1.0, -4.0])
    assert error(reference + torch.tensor([0.0, 1.0]), reference) == 0.25
    assert error(torch.zeros(3), reference) == math.inf
    assert error(torch.zeros(2), torch.zeros(2)) == 0
    assert math.isnan(error(torch.tensor([math.nan, 0]), reference))
    assert largest_error([], []) == 0
    assert largest_error([reference * 1.5, reference * 1.1], [reference, reference]) == 0.5
    with pytest.raises(ValueError):
        largest_error([reference], [])


def test_a_wrong_shape_is_told_and_a_right_one_passed_over() -> None:
    assert shape_detail(torch.zeros(2, 3), torch.zeros(2, 3)) == ""
    told = shape_detail(torch.zeros(2, 4), torch.zeros(2, 3))
    assert told == "logits of shape (2, 4) came back instead of (2, 3)"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2), (torch.float16, 1e-2)])
def test_the_tolerance_is_the_dtype_s_and_nan_is_never_within(dtype: torch.dtype, tolerance: float) -> None:
    subject = Subject(LibraryPath(toy().to(dtype)), seed=0)
    assert subject.within(tolerance).passed and not subject.within(tolerance * 1.01).passed
    assert not subject.within(math.nan).passed


def test_tokens_follow_the_seed_and_avoid_the_special_ids() -> None:
    first, again, other = (Subject(LibraryPath(toy()), seed).tokens for seed in (0, 0, 1))
    assert first.shape == (2, LENGTH) and torch.equal(first, again) and not torch.equal(first, other)
    assert first.min() >= 3 and first.max() < 32


@torch.no_grad()
def test_pieces_through_one_cache_are_the_whole() -> None:
    subject = Subject(LibraryPath(toy()), seed=0)
    whole = subject.whole(subject.short)
    logits, cache = subject.pieces(subject.short, [5, 1, SHORT - 6])
    assert error(logits, whole) < 1e-6
    assert (
        error(subject.values(cache, "recurrent")[0], subject.values(subject.carried(subject.short), "recurrent")[0])
        < 1e-6
    )
    assert subject.values(cache, "window") == []


def test_train_mode_ends_with_the_block_whatever_happens() -> None:
    model = toy()
    with pytest.raises(RuntimeError), in_training(model):
        assert model.training
        raise RuntimeError
    assert not model.training
