"""A run folder: replaced only when asked, by one command at a time, with a page that can be written again."""

import json

import pytest

from tests.cli.running import files, run


def test_a_run_is_not_written_over_unless_asked(capsys, model, tmp_path):
    out = tmp_path / "run"
    assert run(capsys, "check", model, "--out", out)[0] == 0
    before = {f: (tmp_path / f).read_bytes() for f in files(tmp_path) if (tmp_path / f).is_file()}
    code, _, err = run(capsys, "check", model, "--out", out)
    assert code == 2 and "--overwrite" in err
    assert run(capsys, "check", tmp_path / "nothing", "--out", out, "--overwrite")[0] == 2  # the old run comes back
    assert {f: (tmp_path / f).read_bytes() for f in files(tmp_path) if (tmp_path / f).is_file()} == before
    assert run(capsys, "check", model, "--out", out, "--overwrite", "--seed", 1)[0] == 0
    assert json.loads((out / "run.json").read_text())["seed"] == 1 and [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_run_stopped_before_its_page_says_how_to_write_it(capsys, model, tmp_path):
    out = tmp_path / "run"
    assert run(capsys, "check", model, "--out", out)[0] == 0
    (out / "report.html").unlink()
    code, _, err = run(capsys, "check", model, "--out", out)
    assert code == 2 and f"`lengthen report {out}`" in err
    assert run(capsys, "report", out)[0] == 0 and (out / "report.html").exists()


@pytest.mark.parametrize("more", [[], ["--overwrite"]])
def test_a_second_command_leaves_a_running_one_alone(capsys, model, tmp_path, monkeypatch, more):
    from lengthen import models

    check, tried = models.check, []

    def meeting(*args, **kwargs):
        before = (tmp_path / "run" / "run.json").read_bytes()
        tried.append(run(capsys, "check", model, "--out", tmp_path / "run", "--seed", 1, *more))
        assert (tmp_path / "run" / "run.json").read_bytes() == before
        return check(*args, **kwargs)

    monkeypatch.setattr(models, "check", meeting)
    assert run(capsys, "check", model, "--out", tmp_path / "run")[0] == 0
    assert [code for code, _, _ in tried] == [2] and "Another run is writing to" in tried[0][2]
    assert [p.name for p in tmp_path.iterdir()] == ["run"] and (tmp_path / "run" / "report.html").exists()


def test_overwrite_replaces_no_folder_that_is_no_run(capsys, tmp_path, model):
    (tmp_path / "mine" / "results").mkdir(parents=True)
    (tmp_path / "mine" / "results" / "thesis.tex").write_text("years of work")
    code, _, err = run(capsys, "check", model, "--out", tmp_path / "mine", "--overwrite")
    assert code == 2 and "not the folder of a run" in err
    assert (tmp_path / "mine" / "results" / "thesis.tex").read_text() == "years of work"
