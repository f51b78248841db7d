"""diagnose as a user types it. evaluate: tests/tasks/test_evaluate_command.py."""

import json

from tests.cli.running import run


def test_diagnose(capsys, model, text, tmp_path):
    code, out, err = run(
        capsys,
        "diagnose",
        model,
        "--data",
        text,
        "--train-context",
        32,
        "--max-length",
        1024,
        "--positions",
        100,
        1000,
        "--json",
        "--out",
        tmp_path / "run",
    )
    found = json.loads(out)
    assert code == 0 and found["n"] == 16 and found["buckets"][-1]["end"] == 1024 and err == ""
    assert [p["position"] for p in found["positions"]] == [100, 1000]
    assert json.loads((tmp_path / "run" / "results" / "diagnosis.json").read_text())["verdict"] == found["verdict"]
    assert (tmp_path / "run" / "report.html").exists()
