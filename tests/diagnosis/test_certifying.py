"""Certificates: paired differences against an independent computation, and intervals that hold what they promise."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from lengthen import diagnose, wrap
from lengthen.data import HeldOutSequences
from lengthen.diagnosis import certificate
from lengthen.diagnosis.certifying import UNLEARNT, _percent, paired_difference
from lengthen.diagnosis.measure import Measure
from lengthen.diagnosis.sequence_losses import fingerprint
from lengthen.errors import InputError
from lengthen.results import Certificate
from tests.conftest import tiny_mamba2

T, LENGTH = 8, 512


def tokens(seed=0, n=16):
    return np.random.default_rng(seed).integers(256, size=(n, LENGTH + 1))


@pytest.fixture(scope="module")
def found():
    models = {name: wrap(tiny_mamba2(seed)) for seed, name in enumerate(("before", "after", "control"))}
    return {name: diagnose(m, tokens(), train_context=T, max_length=LENGTH, name=name) for name, m in models.items()}


def judged(found, **fails):
    """The diagnoses with the outcomes that are asked for."""
    points = {True: 64, False: None, None: None}
    return [
        dataclasses.replace(found[name], fails=fails[name], break_point=points[fails[name]])
        for name in ("before", "after", "control")
        if name in fails
    ]


def losses(model, rows):
    with torch.no_grad():
        logits = model(torch.as_tensor(rows[:, :-1])).logits.double()
    target = torch.as_tensor(rows[:, 1:])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(
        len(rows), -1
    )


def test_differences_equal_an_independent_computation(found):
    made = certificate(*found.values())
    carried = {name: losses(tiny_mamba2(seed), tokens()).numpy() for seed, name in enumerate(found)}
    far = {name: values[:, 32 * T : 64 * T].mean(1) for name, values in carried.items()}
    d = next(d for d in made.differences if (d.name, d.of, d.against) == ("far", "after", "before"))
    pairs = far["after"] - far["before"]
    assert (d.start, d.end, d.n) == (32 * T, 64 * T, 16)
    assert d.difference == pytest.approx(pairs.mean(), abs=1e-6)
    reach = 2.1314 * pairs.std(ddof=1) / 4  # Student's t of 15 degrees
    assert (d.low, d.high) == pytest.approx((pairs.mean() - reach, pairs.mean() + reach), abs=1e-5)
    assert (d.change_low, d.change_high) == pytest.approx((math.expm1(d.low), math.expm1(d.high)))
    rows = tokens()
    pieces = np.concatenate([losses(tiny_mamba2(1), rows[:, k : k + T + 1]).numpy() for k in range(0, LENGTH, T)], 1)
    reset = next(d for d in made.differences if (d.of, d.against) == ("after", "own reset"))
    assert reset.difference == pytest.approx((far["after"] - pieces[:, 32 * T :].mean(1)).mean(), abs=1e-6)
    other = np.concatenate([losses(tiny_mamba2(2), rows[:, k : k + T + 1]).numpy() for k in range(0, LENGTH, T)], 1)
    cost = next(d for d in made.differences if (d.name, d.against) == ("in context", "control"))
    assert cost.difference == pytest.approx((pieces - other).mean(), abs=1e-6) and (cost.start, cost.end) == (0, T)


def test_the_curves_are_the_differences_of_buckets(found):
    made = certificate(found["before"], found["after"])
    curve = [d for d in made.curves if (d.of, d.against) == ("before", "before reset")]
    assert [d.difference for d in curve] == pytest.approx([b.excess for b in found["before"].buckets], abs=1e-9)
    assert {d.against for d in made.curves} == {"before reset", "own reset", "before"}, "there is no control"


def test_a_second_run_gives_the_same_certificate(found, tmp_path):
    again = {
        name: diagnose(wrap(tiny_mamba2(seed)), tokens(), train_context=T, max_length=LENGTH, name=name)
        for seed, name in enumerate(found)
    }
    one, other = (certificate(*runs.values()).save(tmp_path / f"{i}.json") for i, runs in enumerate((found, again)))
    assert one.read_bytes() == other.read_bytes()
    assert Certificate.load(one) == certificate(*found.values())


def test_intervals_between_disjoint_halves_of_the_same_models_data_cover_zero(plays):
    """Student's interval covers 95 of 100 in the mean; 90 or more of 100 has probability 0.99."""
    sequences = HeldOutSequences(plays[1], length=64, count=200)
    one = diagnose(wrap(tiny_mamba2()), sequences, train_context=8, max_length=64).sequences
    assert one.overlap == 0, "disjoint halves need sequences that share nothing"
    values = np.array(one.carried)[:, -1]
    random, covered = np.random.default_rng(0), 0
    for _ in range(100):
        order = random.permutation(len(values))
        d = paired_difference(
            values[order[:100]], values[order[100:]], Measure(), name="", of="", against="", interval=(0, 64)
        )
        covered += d.low <= 0 <= d.high
    assert 90 <= covered < 100, f"{covered} of 100"


@pytest.mark.parametrize(
    ("fails", "repaired", "said"),
    [
        (
            {"before": True, "after": False, "control": True},
            True,
            "The control arm, trained as long from the zero state",
        ),
        ({"before": True, "after": False, "control": False}, True, "training alone repairs this model"),
        ({"before": True, "after": False}, True, "There is no control arm"),
        ({"before": True, "after": True}, False, "Not repaired: from position 64"),
        ({"before": False, "after": False}, None, "Nothing to repair"),
        ({"before": None, "after": False}, None, None),
        ({"before": True, "after": None}, None, None),
    ],
)
def test_the_verdict(found, fails, repaired, said):
    runs = judged(found, **fails)
    made = certificate(*runs)
    assert made.repaired is repaired
    assert said in made.verdict if said else made.verdict in {run.verdict for run in runs}


def test_that_there_was_nothing_to_judge_is_said_first(found):
    runs = judged(found, before=True, after=False)  # random weights
    learnt = dataclasses.replace(runs[0], recommendation=None)
    assert certificate(*runs).verdict == f"{UNLEARNT} {certificate(learnt, runs[1]).verdict}"


def test_overlap_is_said(found):
    def with_overlap(overlap):
        runs = judged(found, before=True, after=False)
        return certificate(
            *(dataclasses.replace(r, sequences=dataclasses.replace(r.sequences, overlap=overlap)) for r in runs)
        ).verdict

    assert "share up to 100 of 512 positions" in with_overlap(100) and "overlap is not known" in with_overlap(None)
    assert "narrow" not in with_overlap(0)


def test_few_sequences_get_no_interval():
    runs = [diagnose(wrap(tiny_mamba2(s)), tokens(n=15), train_context=T, max_length=LENGTH) for s in (0, 1)]
    made = certificate(*runs)
    assert made.repaired is None and "too few" in made.verdict
    assert all(d.low is None and d.change_high is None for d in made.differences)


def test_runs_on_other_sequences_are_not_paired(found):
    def other(**options):
        settings = {"data": tokens(), "train_context": T, "max_length": LENGTH} | options
        return diagnose(wrap(tiny_mamba2(1)), settings.pop("data"), name="other", **settings)

    for run, reason in (
        (other(data=tokens(seed=1)), "before and other were judged on different sequences"),
        (other(train_context=16), "training context of 8 and other is judged at a training context of 16"),
        (other(max_length=256), "up to position 512 and other is judged up to position 256"),
        (dataclasses.replace(found["after"], sequences=None), "no losses sequence by sequence"),
    ):
        with pytest.raises(InputError, match=reason):
            certificate(found["before"], run)


def test_the_fingerprint_is_of_what_was_read(plays):
    held_out = HeldOutSequences(plays[1], length=64, count=3)
    as_array = np.array(held_out[:, :])
    assert fingerprint(held_out) == fingerprint(as_array) == fingerprint(torch.tensor(as_array, dtype=torch.int32))
    assert fingerprint(held_out.first(63)) == fingerprint(as_array[:, :64]) != fingerprint(as_array)
    as_array[2, 40] ^= 1
    assert fingerprint(as_array) != fingerprint(held_out)


def test_sequences_that_go_less_far_share_less(plays):
    crowded = HeldOutSequences(plays[1], length=60000, count=40)
    assert 0 < crowded.overlap < 60000
    assert crowded.first(60000 - 10).overlap == crowded.overlap - 10 and crowded.first(10).overlap == 0


def test_a_run_judged_beyond_64_contexts_tells_its_last_bucket(found):
    assert "Farther still" not in certificate(*judged(found, before=True, after=False)).verdict
    rows = np.random.default_rng(0).integers(256, size=(16, 2 * LENGTH + 1))
    farther = [
        diagnose(wrap(tiny_mamba2(seed)), rows, train_context=T, max_length=2 * LENGTH, name=name)
        for seed, name in enumerate(("before", "after"))
    ]
    before, after = (
        dataclasses.replace(run, fails=fails, break_point=None) for run, fails in zip(farther, (True, False))
    )
    made = certificate(before, after)
    last = [d for d in made.curves if (d.of, d.against) == ("after", "before reset")][-1]
    said = f"Farther still, from position 768 to 1,024: {100 * last.change:+z.1f} % ["
    assert said in made.verdict and (last.start, last.end) == (768, 1024)


def test_a_zero_has_no_sign():
    assert _percent(-0.0004) == _percent(0.0004) == "+0.0" and _percent(-0.0006) == "-0.1"
