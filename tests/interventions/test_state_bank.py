"""The bank keeps what it was given, lane by lane, and knows how far back each state reaches."""

import pytest

from lengthen import TBPTT, StatePassing
from lengthen.errors import InputError
from lengthen.interventions.state_bank import Provenance, StateBank
from tests.interventions.states import filled, h, rows, zero


def test_the_bank_is_not_changed_by_what_happens_to_the_state_it_was_given():
    bank = StateBank()
    given = filled([1.0, 2.0]).requires_grad()
    bank.put([0, 1], given.map(lambda t, _: t * 1))
    taken = bank.get([1, 0], zero(2))
    assert h(taken).tolist() == [2, 1] and all(not t.requires_grad for t in taken.tensors["l"].values())
    with pytest.raises(InputError, match="lane"):
        bank.put([0, 0], filled([1.0, 2.0]))


def test_provenance_counts_the_age_of_a_chain():
    t = TBPTT()
    for step in range(3):
        r = rows([0, 1], step=step, shuffled=False, start=[step == 0, step != 1])
        t.observe(r, filled([1, 2]))
    assert (t.bank.provenance(0).age, t.bank.provenance(1).age) == (15, 5)
    sp = StatePassing(zero_fraction=0.5, p_zero=0)
    for step in range(3):
        sp.observe(rows([0, 1], step=step), filled([1, 2]))
    assert (sp.bank.provenance(0).age, sp.bank.provenance(1).age) == (5, 15)


def test_lanes_without_a_state_take_the_rows_of_zero_in_their_place():
    bank = StateBank()
    bank.put([4, 2], filled([1.0, 2.0]))
    taken = bank.get([2, 7, 4], filled([9.0, 8.0, 7.0]))
    assert h(taken).tolist() == [2, 8, 1] and bank.lanes == [2, 4] and 7 not in bank


def test_a_bank_is_read_as_it_was_written_in_place_of_what_there_was(tmp_path):
    bank, other = StateBank(), StateBank()
    bank.put([4, 2], filled([1.0, 2.0]), [Provenance(3, 10, 30), Provenance(5, 20, 40)])
    bank.save(tmp_path)
    other.put([0, 1, 9], filled([5.0, 6.0, 7.0]))
    other.load(tmp_path)
    assert other.lanes == [2, 4] and h(other.get([4, 2], zero(2))).tolist() == [1, 2]
    assert (other.provenance(4), other.provenance(2)) == (Provenance(3, 10, 30), Provenance(5, 20, 40))
    (tmp_path / "bank.json").write_text('{"lanes": [4]}')
    with pytest.raises(InputError, match=f"^The state bank in {tmp_path} cannot be read"):
        other.load(tmp_path)


def test_a_step_holds_one_copy_of_its_states_once_they_are_swapped():
    bank = StateBank()
    bank.put([0, 1], filled([1.0, 2.0]))
    held = filled([1.0, 2.0])
    bank.swap([0, 1, 5], held)
    assert bank.get([0, 1], zero(2)).tensors["l"]["h"] is held.tensors["l"]["h"] and 5 not in bank
