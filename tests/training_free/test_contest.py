"""Rivals in one table: what is read counted, the same figures after an interruption, the fair yardstick."""

from dataclasses import replace

import numpy as np
import pytest

from lengthen.data import load_corpus
from lengthen.errors import InputError
from lengthen.training_free import METHODS, load_fitted, method_of
from lengthen.training_free.contest import CONTROL, GIVEN, PASSED, Contestant, Course, contest, entries
from lengthen.training_free.judging import far_loss
from lengthen.training_free.splits import Splits
from tests.conftest import tiny_mamba2
from tests.training_free.texts import L, T, text

SHORT = ("decay-matching", "soft-reset:keep=0.25", "soft-reset:keep=0.75", "deci-mamba")


@pytest.fixture(scope="module")
def course():
    return Course(Splits.of(load_corpus([text(), text(3000, 1)])), T, L, n=16)


@pytest.fixture(scope="module")
def model():
    from lengthen import wrap

    return wrap(tiny_mamba2())


@pytest.fixture(scope="module")
def table(model, course, tmp_path_factory):
    return contest(arms(model), SHORT, course, name="tiny", cells=tmp_path_factory.mktemp("cells"))


def arms(model):
    return [Contestant(GIVEN, model), Contestant(CONTROL, model, 640, 5, 2.0), Contestant(PASSED, model, 640, 5, 2.0)]


def row(table, model, method):
    (found,) = [r for r in table.rivals if (r.model, r.method) == (model, method)]
    return found


def test_what_always_stands_in_the_table():
    named = entries(["constant-delta", "soft-reset:keep=0.3", "soft-reset"])
    assert ["hard-reset"] in named and ["constant-delta"] in named and named.count(["constant-delta"]) == 1
    assert named[-1] == ["soft-reset:keep=0.3", "soft-reset"]
    assert {method_of(t[0]).name for t in entries([])} == set(METHODS)
    with pytest.raises(InputError, match="no training-free method 'constant-dleta'"):
        entries(["constant-dleta"])


def test_the_table(table):
    models = {r.model for r in table.rivals}
    assert models == {GIVEN, CONTROL, PASSED}
    assert {r.method for r in table.rivals if r.model == CONTROL} == {"untouched", "hard-reset"}
    same = [[r.method for r in table.rivals if r.model == m] for m in (GIVEN, PASSED)]
    assert same[0] == same[1] and {"untouched", "hard-reset", "constant-delta", "soft-reset"} <= set(same[0])
    assert "must see the whole prompt" in table.left_out["deci-mamba"] and len(table.left_out) == 1
    assert (table.far_start, table.max_length, table.n) == (16, 32, 16)


def test_everything_read_is_counted(table):
    """Calibration 32 windows of T, selection 4 sequences of L for each candidate, post-training its own."""
    assert row(table, GIVEN, "untouched").tokens == 0
    assert (row(table, GIVEN, "decay-matching").tokens, row(table, GIVEN, "decay-matching").forwards) == (32 * T, 1)
    assert (row(table, GIVEN, "soft-reset").tokens, row(table, GIVEN, "soft-reset").forwards) == (2 * 4 * L, 2 * 4)
    assert row(table, PASSED, "untouched").tokens == 640 and row(table, PASSED, "untouched").seconds == 2.0
    assert row(table, PASSED, "decay-matching").tokens == 640 + 32 * T
    assert row(table, PASSED, "soft-reset").forwards == 5 + 2 * 4


def test_the_best_candidate_by_the_text_to_choose_by_stands_in_the_table(table, model, course):
    tokens = course.splits.to_select_by(L, 0)
    losses = {}
    for keep in (0.25, 0.75):
        method = method_of(f"soft-reset:keep={keep}")
        losses[keep] = far_loss(model, method.fit(model, course.calibration(method)), tokens, T)
    assert losses[0.25] != losses[0.75]
    assert row(table, GIVEN, "soft-reset").settings["keep"] == min(losses, key=losses.get)
    assert row(table, GIVEN, "soft-reset").chosen and not row(table, GIVEN, "constant-delta").chosen


def test_differences_are_paired_with_the_yardstick_and_the_untouched_model(table):
    reset, found = row(table, CONTROL, "hard-reset"), row(table, GIVEN, "constant-delta")
    assert reset.over_reset.difference == 0 and found.over_reset.against == "control, hard-reset"
    expected = np.mean(np.array(found.losses_far) - np.array(reset.losses_far))
    assert found.over_reset.difference == pytest.approx(expected) and expected != 0
    assert found.over_untouched.against == GIVEN and found.over_untouched.low <= found.over_untouched.high
    assert found.far.value == pytest.approx(np.exp(np.mean(found.losses_far)))


def test_an_interrupted_table_goes_on_to_the_same(model, course, tmp_path):
    class Interrupted(Exception):
        pass

    def stop(done, todo):
        if done == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        contest(arms(model), SHORT[:1], course, cells=tmp_path, progress=stop)
    kept = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*.json")}
    assert len(kept) == 3
    found = contest(arms(model), SHORT[:1], course, cells=tmp_path)
    assert all(p.stat().st_mtime_ns == at for p, at in kept.items())
    assert contest(arms(model), SHORT[:1], course, cells=tmp_path).to_json() == found.to_json()
    (fit, *_) = sorted(tmp_path.glob("decay-matching-*/"))
    assert load_fitted(fit).method == method_of("decay-matching")
    other = replace(course, seed=1)
    assert contest(arms(model)[:1], [], other, cells=None).rivals[0].losses_far != found.rivals[0].losses_far
