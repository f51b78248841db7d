"""Moments of final states: of the whole step, however it was cut."""

import pytest
import torch

from lengthen import FittedNoise
from lengthen.errors import InputError
from lengthen.interventions.moments import Moments
from tests.interventions.states import filled, final_states, rows, zero


def test_fitted_moments_do_not_depend_on_micro_batches_and_move_once_a_step():
    whole, parts = FittedNoise(), FittedNoise()
    for step in range(3):
        everyone, half = (
            rows(range(16), step=step),
            [rows(range(8), step=step, total=16), rows(range(8, 16), step=step, total=16)],
        )
        whole.initial_state(everyone, zero(16))
        whole.observe(everyone, final_states(step))
        for i, part in enumerate(half):
            parts.initial_state(part, zero(8))
            parts.observe(part, final_states(step).index(range(8 * i, 8 * i + 8)))
    one = whole.initial_state(rows(range(16), step=3), zero(16))
    two = parts.initial_state(rows(range(16), step=3), zero(16))
    assert torch.allclose(one.tensors["l"]["h"], two.tensors["l"]["h"], rtol=0, atol=1e-6)


def test_moments_are_those_of_every_entry_of_a_head_over_all_rows():
    moments, state = Moments(momentum=0.9), final_states(0)
    moments.advance(0, zero(16))
    for part in (range(3), range(3, 16)):
        moments.add(state.index(part))
    assert moments.mean is None  # the step is not over
    moments.advance(1, zero(16))
    entries = state.tensors["l"]["h"].double().transpose(0, 1).flatten(1)
    assert set(moments.mean["l"]) == {"h"} and moments.mean["l"]["h"].dtype == torch.float64
    assert torch.allclose(moments.mean["l"]["h"], entries.mean(1), rtol=1e-12)
    assert torch.allclose(moments.std()["l"]["h"], entries.std(1, correction=0), rtol=1e-10)


def test_a_step_without_rows_and_a_step_begun_twice_leave_the_moments_where_they_are():
    moments = Moments(momentum=0.5)
    moments.advance(0, zero(4))
    moments.add(filled([2.0] * 4))
    for step in (1, 1, 2):
        moments.advance(step, zero(4))
        assert moments.mean["l"]["h"].tolist() == [2.0, 2.0] and moments.std()["l"]["h"].tolist() == [0.0, 0.0]


def test_moments_saved_in_the_middle_of_a_step_go_on_as_they_would_have(tmp_path):
    one, two = Moments(momentum=0.9), Moments(momentum=0.9)
    one.advance(0, zero(16))
    one.add(final_states(0))
    one.advance(1, zero(16))
    one.add(final_states(1))
    one.save(tmp_path / "moments.json")
    two.load(tmp_path / "moments.json")
    for moments in (one, two):
        moments.advance(2, zero(16))
    for name in ("mean", "square"):
        assert torch.equal(getattr(one, name)["l"]["h"], getattr(two, name)["l"]["h"])


def test_moments_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "moments.json").write_text("{")
    with pytest.raises(InputError, match=r"^The moments of the fitted noise in .*moments\.json cannot be read"):
        Moments(momentum=0.9).load(tmp_path / "moments.json")
