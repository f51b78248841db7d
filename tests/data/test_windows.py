"""Windows cut out of a corpus: targets one position on, padding on the right, and a rank's share of the rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lengthen.data import LaneWindows, ShuffledWindows, load_corpus
from lengthen.data.windows import Windows, cut, generator
from lengthen.errors import InputError


def test_a_window_ends_with_its_document_and_is_padded_on_the_right() -> None:
    corpus = load_corpus([np.arange(5), np.arange(10, 14)], vocabulary_size=256)
    batch = cut(corpus, np.array([0, 1, 0]), np.array([3, 0, 0]), 4)
    assert batch["input_ids"].tolist() == [[3, 0, 0, 0], [10, 11, 12, 0], [0, 1, 2, 3]]
    assert batch["labels"].tolist() == [[4, -100, -100, -100], [11, 12, 13, -100], [1, 2, 3, 4]]
    assert batch["attention_mask"].tolist() == [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_no_mask_where_every_row_is_full() -> None:
    corpus = load_corpus([np.arange(5)], vocabulary_size=256)
    assert "attention_mask" not in cut(corpus, np.array([0, 0]), np.array([0, 1]), 3)


def test_targets_of_their_own_stand_beside_their_frames() -> None:
    frames = np.arange(6.0).reshape(3, 2)
    classes = cut(load_corpus([frames], targets=[np.array([7, 8, 9])]), np.array([0]), np.array([1]), 3)
    assert classes["inputs"].tolist() == [[[2, 3], [4, 5], [0, 0]]] and classes["inputs"].dtype == torch.float32
    assert classes["labels"].tolist() == [[8, 9, -100]]
    values = cut(load_corpus([frames], targets=[np.array([0.5, 1.5, 2.5])]), np.array([0]), np.array([2]), 2)
    assert values["labels"].tolist() == [[2.5, 0]] and values["attention_mask"].tolist() == [[1, 0]]


@pytest.mark.parametrize("kind", [ShuffledWindows, LaneWindows])
@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_the_shares_of_all_ranks_are_the_global_batch(kind: type[Windows], world_size: int) -> None:
    corpus = load_corpus([np.arange(n) % 256 for n in (60, 41, 33, 80, 25)], vocabulary_size=256)
    whole = kind(corpus, context=8, lanes=5, seed=3)
    shares = [kind(corpus, context=8, lanes=5, seed=3, rank=rank, world_size=world_size) for rank in range(world_size)]
    for _ in range(5):
        batch, parts = next(whole), [next(share) for share in shares]
        for name in ("input_ids", "labels", "lane", "start", "document", "offset"):
            assert torch.equal(torch.cat([part[name] for part in parts]), batch[name])


@pytest.mark.parametrize("kind", [ShuffledWindows, LaneWindows])
def test_a_sought_step_is_the_one_that_is_read_forwards_and_back(kind: type[Windows]) -> None:
    corpus = load_corpus([np.arange(n) % 256 for n in (60, 41, 33)], vocabulary_size=256)
    read = kind(corpus, context=8, lanes=2, seed=1)
    batches = [next(read) for _ in range(9)]
    sought = kind(corpus, context=8, lanes=2, seed=1)
    for step in (7, 2, 2, 8):
        sought.seek(step)
        assert torch.equal(next(sought)["input_ids"], batches[step]["input_ids"]) and sought.step == step + 1
    with pytest.raises(InputError, match=r"^There is no batch -1; the first is batch 0\.$"):
        sought.seek(-1)


def test_a_position_is_taken_up_only_with_the_same_data_and_shape() -> None:
    corpus = load_corpus(["to be or not to be", "that is the question"])
    state = LaneWindows(corpus, context=4, lanes=2).state_dict()
    for other, name in (
        (LaneWindows(load_corpus(["to be or not to be", "that is the answer"]), context=4, lanes=2), "fingerprint"),
        (LaneWindows(corpus, context=5, lanes=2), "context"),
        (LaneWindows(corpus, context=4, lanes=1), "lanes"),
        (LaneWindows(corpus, context=4, lanes=2, seed=1), "seed"),
        (ShuffledWindows(corpus, context=4, lanes=2), "kind"),
    ):
        with pytest.raises(InputError, match=rf"^The data's {name} is .* resume with the same data and options"):
            other.load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lanes": 0}, r"^A step needs at least 1 row, not 0; give a number above 0\.$"),
        ({"seed": -1}, r"^The seed is -1; give a whole number of 0 or more\.$"),
        ({"lanes": 2, "world_size": 3}, "^Rank 0 of 3 processes cannot share 2 lanes"),
        ({"rank": 2, "world_size": 2}, "^Rank 2 of 2 processes cannot share 4 lanes"),
    ],
)
def test_a_share_that_cannot_be_is_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ShuffledWindows(load_corpus(["abcdefgh"]), **{"context": 4, "lanes": 4, **arguments})


def test_random_numbers_depend_on_seed_and_key_alone() -> None:
    first = [generator(1, 2, 3).random(4).tolist() for _ in range(2)]
    assert first[0] == first[1]
    assert first[0] != generator(1, 3, 2).random(4).tolist() and first[0] != generator(2, 2, 3).random(4).tolist()
