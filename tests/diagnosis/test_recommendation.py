"""The recommendation: which rule holds for which facts, and what it advises."""

import dataclasses
import math

import pytest

from lengthen.diagnosis.recommendation import STEPS, forgotten_beyond, recommend
from lengthen.results import (
    Bucket,
    Diagnosis,
    Drift,
    Forgetting,
    HeadDrift,
    Patch,
    Patching,
    Remembrance,
    RemembrancePoint,
)

T = 64


def diagnosis(**facts):
    """A model of two heads that fails from 128 on, its states outside, unless said otherwise."""
    edges = [0, 64, 128, 1024, 4096]
    losses = [1.6, 1.6, 1.8, facts.pop("last_loss", 3.0)]
    buckets = [
        Bucket(a, b, loss, 0.01, 1.6, 0.01, loss - 1.6, 0.01, 16) for a, b, loss in zip(edges, edges[1:], losses)
    ]
    settings = {
        "model": "m",
        "family": "mamba2",
        "train_context": T,
        "max_length": 4096,
        "n": 16,
        "seed": 0,
        "buckets": buckets,
        "in_context": 5.0,
        "in_context_stderr": 0.1,
        "far": 20.0,
        "far_stderr": 1.0,
        "own_reset": 5.0,
        "break_point": 128,
        "fails": True,
        "verdict": "",
        "positions": [],
        "states": [],
        "unigram": 27.0,
        "drift": drift(outside=True),
    }
    return Diagnosis(**(settings | facts))


def drift(*, outside, tokens=(1000.0, 2000.0)):
    drifted = [HeadDrift(at, "layer", "recurrent", h, 9.0, 1.0, outside) for at in (64, 128, 4096) for h in (0, 1)]
    return Drift(
        0.05, 512, 200, 16, drifted, [Forgetting("layer", "recurrent", h, t, 1.0, 4) for h, t in enumerate(tokens)]
    )


def remembrance(**means):
    """Points at 4,096 by how many last tokens are kept (as keep_64=0.1)."""
    points = [RemembrancePoint(4096, 0, 0.0, 0.0, 16)]
    points += [RemembrancePoint(4096, 4096 - int(k[5:]), mean, 0.0, 16) for k, mean in means.items()]
    return Remembrance(sorted(points, key=lambda p: p.start), 0, 0)


HOLDS = {"fails": False, "break_point": None}
FORGETFUL = remembrance(keep_2048=0.0, keep_64=0.005, keep_32=0.2)


@pytest.mark.parametrize(
    "rule, facts",
    [
        ("fails", {}),
        ("fails", {"drift": None}),
        ("fails", {"unigram": None, "loss": "mean squared error"}),
        ("no_failure", HOLDS),
        ("no_failure", HOLDS | {"drift": drift(outside=True)}),  # states that grow without harm are no failure
        ("no_failure", HOLDS | {"remembrance": remembrance(keep_2048=0.02, keep_64=0.1)}),
        ("no_failure", HOLDS | {"remembrance": remembrance(keep_3072=0.001, keep_2048=0.1)}),
        ("forgets", HOLDS | {"remembrance": FORGETFUL}),
        ("learnt_nothing", HOLDS | {"remembrance": FORGETFUL, "in_context": 27.0}),
        ("undecided", HOLDS | {"fails": None, "n": 8}),
        ("overflows", {"last_loss": math.inf}),
        ("fails_with_familiar_states", {"drift": drift(outside=False)}),
        ("context_too_short", {"drift": drift(outside=True, tokens=(11_000.0, 12_000.0))}),
        ("context_too_short", {"drift": drift(outside=True, tokens=(None, None))}),
        ("fails", {"drift": drift(outside=True, tokens=(100.0, 20_000.0))}),  # one head that never settles is usual
    ],
)
def test_the_rule_that_holds(rule, facts):
    found = recommend(diagnosis(**facts))
    assert found.rule == rule and found.finding.endswith(".") and found.advice.endswith(".")
    trained = rule in ("fails", "context_too_short")
    assert (found.intervention, found.steps) == (("state-passing", STEPS) if trained else (None, None))


def test_drift_up_to_the_break_point_does_not_count_as_unfamiliar():
    early = dataclasses.replace(drift(outside=False), heads=[HeadDrift(64, "layer", "recurrent", 0, 9.0, 1.0, True)])
    late = drift(outside=False)
    mixed = dataclasses.replace(late, heads=early.heads + late.heads)
    assert recommend(diagnosis(drift=mixed)).rule == "fails_with_familiar_states"


def test_what_is_undecided_says_what_is_missing():
    undecided = HOLDS | {"fails": None}
    assert "16 sequences" in recommend(diagnosis(**undecided, n=8)).advice
    assert "--max-length" in recommend(diagnosis(**undecided, max_length=T)).advice
    assert "weights" in recommend(diagnosis(**undecided)).advice


def test_the_layer_is_named_where_patching_is_sure():
    patches = [Patch("backbone.layers.2.mixer", None, 0.8, 0.05)]
    sure, unsure = Patching(2048, 2112, 1.0, 0.1, 16, patches), Patching(2048, 2112, 0.1, 0.1, 16, patches)
    assert "80 % of the excess loss comes from backbone.layers.2" in recommend(diagnosis(patching=sure)).finding
    assert "backbone" not in recommend(diagnosis(patching=unsure)).finding


def test_a_context_too_short_is_given_a_length():
    found = recommend(diagnosis(drift=drift(outside=True, tokens=(20_000.0, 20_000.0))))
    assert "at least 120" in found.advice and "20,000 tokens" in found.finding


@pytest.mark.parametrize(
    "kept, found",
    [
        ({"keep_2048": 0.0, "keep_64": 0.005, "keep_32": 0.2}, 64),
        ({"keep_2048": 0.02, "keep_64": 0.0}, None),
        ({"keep_2048": 0.0, "keep_512": 0.2, "keep_64": 0.0}, 2048),  # it must hold for all that are longer
        ({}, None),
    ],
)
def test_forgotten_beyond(kept, found):
    assert forgotten_beyond(remembrance(**kept)) == found
