"""Lanes: no position skipped or repeated, starts exact, resumable, the same whatever the number of processes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthen.data import Corpus, LaneWindows, load_corpus
from lengthen.errors import InputError
from tests.data.random_corpora import assert_equal, joined, numbered, settings_of_windows

Setting = tuple[Corpus, int, int, int]


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(settings_of_windows())
def test_lanes_read_every_document_from_beginning_to_end(setting: Setting) -> None:
    corpus, context, lanes, seed = setting
    windows = LaneWindows(corpus, context=context, lanes=lanes, seed=seed)
    readable = {d for d in range(corpus.documents) if corpus.lengths[d] > 1}
    steps = 2 + int(2 * np.ceil(corpus.inputs / context).sum() // lanes)  # two epochs and a little
    reading: list[int | None] = [None] * lanes  # each lane's document
    expected = [0] * lanes  # and the offset it must be at
    queue: list[int] = []
    for _ in range(steps):
        batch = next(windows)
        mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
        assert torch.equal(batch["lane"], torch.arange(lanes))
        for lane in range(lanes):
            document, offset = int(batch["document"][lane]), int(batch["offset"][lane])
            if reading[lane] is None:  # the lane has read its last document to the end
                assert offset == 0
                reading[lane], expected[lane] = document, 0
                queue.append(document)
            assert (document, offset) == (reading[lane], expected[lane])
            assert bool(batch["start"][lane]) == (offset == 0)
            real = int(mask[lane].sum())
            assert real == min(context, int(corpus.lengths[document]) - 1 - offset) > 0
            assert mask[lane, :real].all()  # padding is on the right
            tokens = torch.from_numpy(corpus.document(document)[offset : offset + real + 1].astype(np.int64))
            assert torch.equal(batch["input_ids"][lane, :real], tokens[:-1])
            assert torch.equal(batch["labels"][lane, :real], tokens[1:])
            assert (batch["labels"][lane, real:] == -100).all()
            expected[lane] = offset + context
            if expected[lane] >= corpus.lengths[document] - 1:
                reading[lane] = None
        assert ("attention_mask" in batch) == (not bool(mask.all()))
    for epoch in range(len(queue) // len(readable)):
        assert set(queue[epoch * len(readable) : (epoch + 1) * len(readable)]) == readable


@settings(max_examples=100, deadline=None, derandomize=True)
@given(settings_of_windows(), st.integers(0, 40), st.data())
def test_position_survives_resume_and_a_change_of_world_size(setting: Setting, steps: int, data: st.DataObject) -> None:
    corpus, context, lanes, seed = setting
    options = {"context": context, "lanes": lanes, "seed": seed}
    windows = LaneWindows(corpus, **options)
    for _ in range(steps):
        next(windows)
    state = json.loads(json.dumps(windows.state_dict()))
    world_size = data.draw(st.integers(1, lanes))
    ranks = [LaneWindows(corpus, **options, rank=rank, world_size=world_size) for rank in range(world_size)]
    for rank in ranks:
        rank.load_state_dict(state)
        assert rank.state_dict() == state
    sought = LaneWindows(corpus, **options)
    sought.seek(steps)
    for _ in range(5):
        batch = next(windows)
        assert_equal(joined([next(rank) for rank in ranks]), batch)
        assert_equal(next(sought), batch)
    sought.seek(steps)  # back again
    assert sought.state_dict() == state


def test_order_differs_between_epochs_and_seeds() -> None:
    corpus = numbered([3] * 40)

    def order(seed: int) -> list[int]:
        windows = LaneWindows(corpus, context=2, lanes=1, seed=seed)
        return [int(next(windows)["document"]) for _ in range(80)]

    assert order(0) == order(0) != order(1)
    assert order(0)[:40] != order(0)[40:]


def test_batches_are_fresh_tensors() -> None:
    windows = LaneWindows(numbered([9, 9]), context=2, lanes=2)
    first = next(windows)
    first["offset"] += 100
    first["document"] += 100
    assert next(windows)["offset"].tolist() == [2, 2]


def test_frames_next_frame_and_own_targets() -> None:
    frames = [np.arange(10, dtype=np.float64).reshape(5, 2), np.arange(8, dtype=np.float64).reshape(4, 2)]
    batch = next(LaneWindows(load_corpus(frames), context=4, lanes=2))
    long, short = (batch["document"] == 0).nonzero().item(), (batch["document"] == 1).nonzero().item()
    assert batch["inputs"].dtype == batch["labels"].dtype == torch.float32
    assert torch.equal(batch["labels"][long], torch.arange(2.0, 10.0).reshape(4, 2))
    assert torch.equal(batch["inputs"][short], torch.tensor([[0.0, 1], [2, 3], [4, 5], [0, 0]]))
    assert torch.equal(batch["labels"][short], torch.tensor([[2.0, 3], [4, 5], [6, 7], [0, 0]]))
    assert batch["attention_mask"][short].tolist() == [1, 1, 1, 0]

    corpus = load_corpus(frames, targets=[np.array([7, 8, 9, -100, 5]), np.array([1, 2, 3, 4])])
    batch = next(LaneWindows(corpus, context=5, lanes=2))
    long, short = (batch["document"] == 0).nonzero().item(), (batch["document"] == 1).nonzero().item()
    assert batch["labels"][long].tolist() == [7, 8, 9, -100, 5]  # a position's own target: nothing is shifted
    assert batch["labels"][short].tolist() == [1, 2, 3, 4, -100]
    assert torch.equal(batch["inputs"][long], torch.from_numpy(frames[0]).float())


def test_more_lanes_than_documents_are_refused_and_sections_are_the_way_out() -> None:
    corpus = numbered([21, 1])
    with pytest.raises(InputError, match=r"^2 lanes cannot walk through 1 documents .*sections\.$"):
        LaneWindows(corpus, context=4, lanes=2)
    sections = corpus.sections(9)
    assert sections.lengths.tolist() == [9, 9, 3, 1]
    windows = LaneWindows(sections, context=4, lanes=2)
    assert next(windows)["start"].all()


def test_changed_data_and_wrong_arguments_are_refused() -> None:
    corpus = numbered([9, 9])
    state = LaneWindows(corpus, context=2, lanes=2).state_dict()
    with pytest.raises(InputError, match=r"^The data's fingerprint is .*start afresh\.$"):
        LaneWindows(numbered([9, 10]), context=2, lanes=2).load_state_dict(state)
    with pytest.raises(InputError, match=r"^The data's seed is 1"):
        LaneWindows(corpus, context=2, lanes=2, seed=1).load_state_dict(state)
    for wrong in ({"context": 0}, {"context": 9}, {"lanes": 0}, {"seed": -1}, {"rank": 2, "world_size": 2}):
        with pytest.raises(InputError, match=r"^[A-Z0-9].*\.$"):
            LaneWindows(corpus, **{"context": 2, "lanes": 2, **wrong})
    with pytest.raises(InputError, match="cannot share 2 lanes"):
        LaneWindows(corpus, context=2, lanes=2, world_size=3)
