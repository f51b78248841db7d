"""Options from a file: what is typed wins, and those of a trainer are for commands that train."""

import json

from tests.cli.running import run


def test_options_from_a_file(capsys, model, text, tmp_path):
    config = tmp_path / "options.yaml"
    config.write_text("train-context: 32\nsteps: 4\nrows: 8\ntraining:\n  logging_steps: 2\n  adam_beta2: 0.99\n")
    code, printed, _ = run(
        capsys,
        "post-train",
        model,
        "--data",
        text,
        "--config",
        config,
        "--steps",
        2,
        "--out",
        tmp_path / "run",
        "--json",
    )
    found = json.loads(printed)
    assert code == 0 and found["steps"] == 2 and found["rows"] == 8  # what is typed wins over the file
    assert found["configuration"]["config"] == {"logging_steps": 2, "adam_beta2": 0.99}


def test_options_for_the_trainer_are_refused_where_nothing_is_trained(capsys, model, tmp_path):
    config = tmp_path / "options.yaml"
    config.write_text("training:\n  logging_steps: 2\n")
    code, _, err = run(capsys, "check", model, "--config", config)
    assert code == 2 and "`training` in" in err and "post-train" in err
