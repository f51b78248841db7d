"""The study `rivals`: models are trained once, the tables go on after an interruption, and all of it is told at once."""

import pytest

from lengthen.cli import main
from lengthen.results import RivalStudy
from lengthen.studies.rival_models import BASES
from lengthen.studies.rival_study import CANDIDATES, RivalPlan, plan, run_rivals
from lengthen.studies.settings import Base
from lengthen.training import Mamba2Recipe
from lengthen.training_free import METHODS, method_of

SMALL = Base(Mamba2Recipe(width=16, layers=1, head_dim=16, state_size=8), train_context=8, rows=4, steps=2)
PLAN = RivalPlan({"one": (SMALL, True), "other": (Base(SMALL.recipe, 8, 3, 4), False)}, ("soft-reset",), n=16)


@pytest.fixture(autouse=True)
def short_training(monkeypatch):
    from lengthen.studies.settings import Setting

    monkeypatch.setattr(
        "lengthen.studies.rival_study.Setting", lambda base, intervention="zero": Setting(base, intervention, 2)
    )


def test_every_method_has_a_place_and_the_slow_model_every_seed():
    named = plan()
    assert {method_of(text).name for text in named.methods} == set(METHODS)
    assert set(CANDIDATES) <= set(named.methods) and set(named.bases) == set(BASES)
    assert {label: len(of) for label, of in named.runs([0, 1, 2]).items()} == {"slow": 3, "mild": 1, "stock": 1}


def test_the_command_shows_and_keeps_the_study(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("lengthen.studies.studying.plan", lambda: PLAN)

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main(["study", "rivals", "--seeds", "2", "--processes", "1", "--out", str(tmp_path / "run"), *arguments])
        return end.value.code, *capsys.readouterr()

    code, out, err = run("--markdown")
    assert code == 0 and err == "" and out.startswith("## rivals") and "`lengthen study rivals --seeds 2`" in out
    assert "### one (seeds 0, 1)" in out and "### other (seed 0)" in out
    assert out.count("\n| state passing + soft reset |") == 2 and out.count("\n| control + hard reset |") == 2
    found = RivalStudy.load(tmp_path / "run" / "results" / "rivals.json")
    assert {label: [t.seed for t in tables] for label, tables in found.bases.items()} == {"one": [0, 1], "other": [0]}
    trained = [r for t in found.bases["one"] for r in t.rivals if r.model == "control" and r.method == "untouched"]
    assert [r.tokens for r in trained] == [2 * 4 * 8] * 2 and trained[0].losses_far != trained[1].losses_far
    assert "state passing + soft reset" in (tmp_path / "run" / "report.html").read_text()
    assert (tmp_path / "run" / "figures" / "rivals.png").exists()
    cells = {p: p.stat().st_mtime_ns for p in (tmp_path / "run" / "cells").glob("*.json")}
    next(p for p in cells if p.name.startswith("soft-reset-")).unlink()
    done = []
    again = run_rivals(PLAN, [0, 1], tmp_path / "run" / "cells", 1, lambda *told: done.append(told))
    assert done == [("judge", i, 3) for i in (1, 2, 3)]
    assert sum(p.stat().st_mtime_ns != at for p, at in cells.items()) == 1
    told = [[r.losses_far for r in t.rivals] for tables in again.bases.values() for t in tables]
    assert told == [[r.losses_far for r in t.rivals] for tables in found.bases.values() for t in tables]
    code, out, _ = run()
    assert code == 0 and "What does post-training buy" in out and "other (seed 0)" in out
