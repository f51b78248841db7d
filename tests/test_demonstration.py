"""The demonstration: small here, whole (time, three seeds, the stock initialisation) in `make acceptance`."""

import json
import subprocess
import sys
import time

import pytest

from lengthen import StatePassing, Zero, demonstration, diagnose, pretrain
from lengthen.data import HeldOutSequences
from lengthen.results import Demonstration
from lengthen.training import Mamba2Recipe, Optimisation, run_training

ARMS = ["before", "control", "random_noise", "fitted_noise", "state_passing", "tbptt"]
FIGURES = ["in_context", "far", "own_reset", "before_reset", "control_reset", "far_over_reset", "stderr", "n"]


def test_the_whole_job_small(tmp_path, monkeypatch):
    """One layer, a third of the steps: the failure is milder, its repair the same."""
    monkeypatch.setattr(demonstration, "PRETRAINING_STEPS", 300)
    monkeypatch.setattr(demonstration, "STEPS", 60)
    monkeypatch.setattr(demonstration, "SEQUENCES", 16)
    monkeypatch.setattr(demonstration, "RECIPE", Mamba2Recipe(layers=1, decay_range=demonstration.SLOW_DECAYS))
    stages = []
    result = demonstration.demo(
        out=tmp_path / "run", progress=lambda name, done, todo: stages.append((name, done, todo))
    )
    document = result.to_json()
    assert {"train_context", "seconds", "parity", "arms"} <= set(document) and document["parity"]["passed"]
    assert list(document["arms"]) == ARMS and all(list(a) == FIGURES for a in document["arms"].values())
    arms = result.arms
    assert arms["before"].far_over_reset > 2 and arms["control"].far_over_reset > 2
    assert arms["state_passing"].far_over_reset < 1.1 and arms["tbptt"].far_over_reset < 1.2
    assert arms["state_passing"].in_context < 1.1 * arms["before"].in_context
    assert result.diagnoses["before"].fails and not result.diagnoses["state_passing"].fails
    assert all(a.far_over_reset == pytest.approx(a.far / arms["before"].own_reset) for a in arms.values())
    assert {name for name, done, todo in stages if done == todo} >= {
        "pretrain",
        "check",
        *(f"post-train {a}" for a in ARMS[1:]),
    }
    assert Demonstration.load(tmp_path / "run" / "results" / "demonstration.json").to_json() == document
    assert (tmp_path / "run" / "report.html").stat().st_size > 100_000
    assert "not quality" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.acceptance
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_breaks_and_is_repaired_within_four_minutes(tmp_path, seed):
    began = time.perf_counter()
    command = [sys.executable, "-m", "lengthen", "demo", "--seed", str(seed), "--out", str(tmp_path / "run"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    assert done.returncode == 0, done.stderr
    arms = json.loads(done.stdout)["arms"]
    for name, arm in arms.items():
        print(f"seed {seed} {name:14} " + " ".join(f"{figure} {arm[figure]:.3f}" for figure in FIGURES[:6]))
    print(f"seed {seed}: {seconds:.0f} s")
    ratio = {name: arm["far_over_reset"] for name, arm in arms.items()}
    assert ratio["before"] >= 3 and ratio["control"] >= 2.5
    assert ratio["state_passing"] <= 1.03 and ratio["tbptt"] <= 1.06
    assert ratio["fitted_noise"] <= max(ratio["control"] / 3, 1.3)
    assert abs(arms["state_passing"]["in_context"] / arms["before"]["in_context"] - 1) <= 0.05
    assert seconds <= 240


@pytest.mark.acceptance
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_stock_model_is_not_said_to_fail_and_is_better(plays, seed):
    """A in [1, 16], trained as the slow model is; then as long as its arms are, against state passing's figures."""
    training, held_out = plays
    tokens = HeldOutSequences(held_out, length=4096, count=demonstration.SEQUENCES, seed=seed)

    def trained(recipe, intervention):
        model, _ = pretrain(training, steps=demonstration.PRETRAINING_STEPS, recipe=recipe, seed=seed)
        first = diagnose(model, tokens, train_context=64, seed=seed)
        optimisation = Optimisation(
            steps=demonstration.STEPS, rows=demonstration.ROWS, learning_rate=demonstration.LEARNING_RATE
        )
        run_training(model, training, intervention, optimisation, train_context=64, seed=seed + 1)
        return first, diagnose(model, tokens, train_context=64, seed=seed)

    first, stock = trained(Mamba2Recipe(), Zero())
    _, repaired = trained(demonstration.RECIPE, StatePassing(seed=seed))
    for name, found in (("stock, 1000 steps", first), ("stock, 1500 steps", stock), ("slow, repaired", repaired)):
        print(f"seed {seed}, {name}: in context {found.in_context:.3f}, far {found.far:.3f}, {found.verdict}")
    assert first.fails is False and stock.fails is False
    assert stock.far < repaired.far and stock.in_context < repaired.in_context
