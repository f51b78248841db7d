"""The commands that train and judge in one go: what they cannot do is refused before any work, and bench keeps its result."""

import json
from dataclasses import replace

import pytest

from lengthen.results import BenchmarkResult
from lengthen.studies import benchmark_cases
from tests.cli.running import run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rivals", "./nothing", "--data", "text", "--train-context", 0), "The training context is 0;"),
        (("rivals", "./nothing", "--data", "text", "--train-context", 8, "--steps", 0), "The number of steps is 0;"),
        (("rivals", "./nothing", "--data", "text", "--train-context", 8), "./nothing does not exist"),
        (("study", "familes"), "There is no study 'familes'; choose one of interventions,"),
        (("study", "families", "--processes", 0), "The number of processes is 0; give at least 1."),
        (("bench", "attention"), "nothing called attention"),
        (("bench", "--pairs", 0), "0 pairs"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_and_leaves_no_folder(capsys, tmp_path, arguments, said):
    code, printed, err = run(capsys, *arguments, "--out", tmp_path / "run")
    assert code == 2 and printed == "" and said in " ".join(err.split())
    assert not (tmp_path / "run").exists()


def test_bench_prints_and_keeps_what_it_timed(capsys, tmp_path, monkeypatch):
    case = next(case for case in benchmark_cases.cases() if case.op == "ssd")
    monkeypatch.setattr("lengthen.studies.benchmarking.cases", lambda: [replace(case, length=65, with_memory=False)])
    code, printed, _ = run(capsys, "bench", "ssd", "--pairs", 1, "--out", tmp_path / "run", "--json")
    found = json.loads(printed)
    assert code == 0 and [entry["op"] for entry in found["entries"]] == ["ssd"]
    assert BenchmarkResult.load(tmp_path / "run/results/benchmark.json").to_json() == found


def test_the_studies_that_help_names_are_those_there_are(capsys):
    from lengthen.studies import LESSONS, STUDIES

    _, printed, _ = run(capsys, "study", "--help")
    told = " ".join(printed.replace("│", " ").split())
    assert all(name in told for name in (*STUDIES, *LESSONS, "rivals"))
