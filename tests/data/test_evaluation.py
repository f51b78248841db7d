"""Held-out sequences: contiguous, within documents, spread, disjoint while there is room."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lengthen.data import evaluation_layout, evaluation_sequences, load_corpus
from lengthen.errors import InputError
from tests.data.random_corpora import numbered

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=8)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(LENGTHS, st.integers(1, 20), st.integers(1, 12), st.integers(0, 1000), st.booleans())
def test_sequences_are_contiguous_distinct_and_disjoint_while_there_is_room(
    lengths: list[int], length: int, count: int, seed: int, join: bool
) -> None:
    spans = [sum(lengths)] if join else lengths
    places = sum(max(span - length, 0) for span in spans)
    assume(places >= count)
    corpus = numbered(lengths)
    sequences = evaluation_sequences(corpus, length=length, count=count, seed=seed, join=join)
    _, overlap = evaluation_layout(corpus, length=length, count=count, seed=seed, join=join)
    assert sequences.shape == (count, length + 1) and sequences.dtype == np.int64
    assert (np.diff(sequences, axis=1) == 1).all()  # tokens are positions
    document = np.searchsorted(corpus.boundaries, sequences, side="right")
    assert join or (document == document[:, :1]).all()
    first = sequences[:, 0]
    assert len(set(first.tolist())) == count
    assert overlap == max(0, length - min(np.diff(np.sort(first)), default=length))
    if sum(max((span - 1) // length, 0) for span in spans) >= count:
        assert overlap == 0
    usable = sum(span > length for span in spans)
    if not join:
        assert len(set(document[:, 0].tolist())) == min(count, usable)


def test_forced_overlap_is_as_small_as_can_be() -> None:
    # Four sequences of 10 in 21 inputs: beginnings 0..11, at best 11/3 apart, so that a pair shares 10 - 3 inputs.
    first, overlap = evaluation_layout(numbered([22]), length=10, count=4)
    assert first.tolist() == [0, 3, 7, 11] and overlap == 7
    # In two documents of 16 inputs: two in each, 6 apart.
    first, overlap = evaluation_layout(numbered([17, 17]), length=10, count=4)
    assert first.tolist() == [0, 6, 17, 23] and overlap == 4


def test_seed_moves_sequences_within_documents() -> None:
    corpus = numbered([1000, 1000])
    one, other = (evaluation_layout(corpus, length=50, count=4, seed=seed)[0].tolist() for seed in (0, 1))
    assert one == evaluation_layout(corpus, length=50, count=4, seed=0)[0].tolist() != other


def test_frames_come_as_floats() -> None:
    frames = np.arange(12, dtype=np.float32).reshape(6, 2)
    sequences = evaluation_sequences(load_corpus([frames]), length=5, count=1)
    assert sequences.dtype == np.float32 and np.array_equal(sequences, frames[None])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 10, "count": 1}, r"^A sequence of 10 positions needs 11 tokens, but the longest document has 10;"),
        ({"length": 30, "count": 1, "join": True}, r"^A sequence of 30 .* but the longest text has 15; give more text"),
        ({"length": 9, "count": 2}, r"^2 sequences of 9 positions do not fit"),
        ({"length": 0, "count": 2}, r"length and a count of at least 1, not 0 and 2"),
    ],
)
def test_impossible_requests_are_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluation_sequences(numbered([10, 5]), **options)


def test_a_single_document_is_not_to_be_joined() -> None:
    with pytest.raises(InputError, match=r"the longest document has 10; give more text, or judge shorter") as caught:
        evaluation_sequences(numbered([10]), length=10, count=1)
    assert "--join" not in str(caught.value)
