"""What every intervention keeps: nothing from zero, and itself through saving and restoring."""

import copy

import pytest
import torch

from lengthen import TBPTT, FittedNoise, Mixture, RandomNoise, Rows, StatePassing, Zero
from lengthen.errors import InputError
from tests.interventions.states import final_states, rows, zero


def test_zero_gives_nothing():
    assert Zero().initial_state(rows([0, 1]), zero(2)) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: StatePassing(zero_fraction=0),
        TBPTT,
        FittedNoise,
        lambda: RandomNoise(2.0, True),
        lambda: Mixture([(StatePassing(zero_fraction=0), 0.5), (FittedNoise(), 0.5)]),
    ],
)
def test_save_and_restore(tmp_path, make):
    first = make()
    shuffled = not isinstance(first, TBPTT)
    for step in range(2):
        first.initial_state(rows(range(16), step=step, shuffled=shuffled), zero(16))
        first.observe(rows(range(16), step=step, shuffled=shuffled), final_states(step))
    first.save(tmp_path)
    second = make()
    second.load(tmp_path)
    now = rows(range(16), step=2, shuffled=shuffled)
    one, two = copy.deepcopy(first).initial_state(now, zero(16)), second.initial_state(now, zero(16))
    assert torch.equal(one.tensors["l"]["h"], two.tensors["l"]["h"])


BATCH = {"lane": torch.tensor([3, 1]), "start": torch.tensor([True, False]), "input_ids": torch.zeros(2, 7)}


def test_rows_are_read_from_a_batch_of_windows():
    found = Rows.of(BATCH | {"document": torch.tensor([5, 6])}, 4, shuffled=True)
    assert (len(found), found.lanes, found.tokens, found.step, found.shuffled) == (2, 2, 7, 4, True)
    assert found.document.tolist() == [5, 6] and found.offset is None
    assert Rows.of(BATCH, 0, shuffled=False, lanes=8).lanes == 8
    floats = {name: value for name, value in BATCH.items() if name != "input_ids"} | {"inputs": torch.zeros(2, 9, 3)}
    assert Rows.of(floats, 0, shuffled=False).tokens == 9


@pytest.mark.parametrize("name", ["lane", "start"])
def test_a_batch_of_someone_elses_loader_is_told_what_it_lacks(name):
    with pytest.raises(InputError, match=f"^The batch has no '{name}'; rows need lane and start"):
        Rows.of({key: value for key, value in BATCH.items() if key != name}, 0, shuffled=True)


def test_some_of_the_rows_keep_what_belongs_to_them_and_to_the_step():
    whole = Rows.of(BATCH | {"offset": torch.tensor([10, 20])}, 4, shuffled=False, lanes=8)
    part = whole.index(torch.tensor([1]))
    assert (part.lane.tolist(), part.start.tolist(), part.offset.tolist()) == ([1], [False], [20])
    assert (part.step, part.lanes, part.tokens, part.document) == (4, 8, 7, None)
