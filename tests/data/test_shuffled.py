"""Shuffled windows: an epoch holds each window once, rows are full, and seed and step alone decide."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthen.data import Corpus, ShuffledWindows
from lengthen.errors import InputError
from tests.data.random_corpora import assert_equal, joined, numbered, settings_of_windows

Setting = tuple[Corpus, int, int, int]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(settings_of_windows(), st.integers(1, 7))
def test_an_epoch_is_consecutive_windows_of_every_document_once(setting: Setting, lanes: int) -> None:
    corpus, context, _, seed = setting
    windows = ShuffledWindows(corpus, context=context, lanes=lanes, seed=seed)
    inputs = corpus.inputs
    usable = {d for d in range(corpus.documents) if inputs[d] >= context}
    assert windows.left_out == corpus.documents - len(usable)
    rows: list[tuple[int, int]] = []
    while len(rows) < 2 * int((inputs // context).sum()) + 2 * lanes:
        batch = next(windows)
        assert batch.keys() == {"input_ids", "labels", "lane", "start", "document", "offset"}
        assert batch["input_ids"].shape == (lanes, context)
        assert not batch["start"].any() and torch.equal(batch["lane"], torch.arange(lanes))
        first = torch.from_numpy(corpus.boundaries)[batch["document"]] + batch["offset"]
        assert torch.equal(batch["input_ids"], first[:, None] + torch.arange(context))  # tokens are positions
        assert torch.equal(batch["labels"], batch["input_ids"] + 1)
        last = batch["labels"][:, -1]
        assert (last < torch.from_numpy(corpus.boundaries)[batch["document"] + 1]).all()  # inside its document
        rows += zip(batch["document"].tolist(), batch["offset"].tolist())
    for _ in range(2):
        # The phases of an epoch are found again from its rows: the windows of a document fill all it has room for.
        epoch: dict[int, list[int]] = {}
        while rows and not _complete(epoch, usable, inputs, context):
            document, offset = rows.pop(0)
            epoch.setdefault(document, []).append(offset)
        assert epoch.keys() == usable
        for document, offsets in epoch.items():
            first_offset = min(offsets)
            count = (int(inputs[document]) - first_offset) // context
            assert sorted(offsets) == [first_offset + context * k for k in range(count)]
            assert first_offset < context


def _complete(epoch: dict[int, list[int]], usable: set[int], inputs: np.ndarray, context: int) -> bool:
    return epoch.keys() == usable and all(
        len(offsets) == (inputs[document] - min(offsets)) // context and min(offsets) < context
        for document, offsets in epoch.items()
    )


@settings(max_examples=100, deadline=None, derandomize=True)
@given(settings_of_windows(), st.integers(0, 40), st.integers(1, 6), st.data())
def test_position_survives_resume_and_a_change_of_world_size(
    setting: Setting, steps: int, lanes: int, data: st.DataObject
) -> None:
    corpus, context, _, seed = setting
    options = {"context": context, "lanes": lanes, "seed": seed}
    windows = ShuffledWindows(corpus, **options)
    for _ in range(steps):
        next(windows)
    state = json.loads(json.dumps(windows.state_dict()))
    world_size = data.draw(st.integers(1, lanes))
    ranks = [ShuffledWindows(corpus, **options, rank=rank, world_size=world_size) for rank in range(world_size)]
    for rank in ranks:
        rank.load_state_dict(state)
        assert rank.state_dict() == state
    sought = ShuffledWindows(corpus, **options)
    sought.seek(steps)
    for _ in range(5):
        batch = next(windows)
        assert_equal(joined([next(rank) for rank in ranks]), batch)
        assert_equal(next(sought), batch)
    sought.seek(steps)
    assert sought.state_dict() == state


def test_seeds_orders_and_first_offsets_differ() -> None:
    corpus = numbered([1000])

    def rows(seed: int) -> list[int]:
        windows = ShuffledWindows(corpus, context=10, lanes=1, seed=seed)
        return [int(next(windows)["offset"]) for _ in range(400)]

    assert rows(3) == rows(3) != rows(4)
    assert rows(3)[:98] != sorted(rows(3)[:98])  # an epoch has 99 or more windows
    assert len({offset % 10 for offset in rows(3)}) > 1  # epochs cut at different places


def test_windows_come_in_another_order_in_every_epoch() -> None:
    # One window a document, so that nothing but the order can differ.
    windows = ShuffledWindows(numbered([4] * 30), context=3, lanes=30)
    first, second = (next(windows)["document"].tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(30)) and first != second


def test_every_first_offset_is_reached() -> None:
    # 7 inputs, T = 3: windows may begin at 0, 1 or 2. Forty epochs miss one of three with probability 3 (2/3)^40.
    windows = ShuffledWindows(numbered([8]), context=3, lanes=1)
    assert {int(next(windows)["offset"]) % 3 for _ in range(80)} == {0, 1, 2}


def test_documents_too_short_for_a_window_are_refused_in_a_sentence() -> None:
    with pytest.raises(InputError, match=r"^The longest document has 5 tokens, but a training context of 5 needs 6;"):
        ShuffledWindows(numbered([5, 3]), context=5, lanes=1)
    with pytest.raises(InputError, match=r"^There is no batch -1"):
        ShuffledWindows(numbered([5, 3]), context=4, lanes=1).seek(-1)
