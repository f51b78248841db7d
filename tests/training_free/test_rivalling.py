"""rivals(): what is missing is trained, what is there is taken, arms that are no match are refused."""

import json

import pytest

from lengthen import wrap
from lengthen.errors import InputError
from lengthen.models import load
from lengthen.results import Rivals
from lengthen.training_free.contest import GIVEN
from lengthen.training_free.rivalling import rivals
from tests.conftest import tiny_mamba2
from tests.training_free.command_line import asked, run
from tests.training_free.texts import L, T, text


def test_the_command_trains_what_is_missing_and_goes_on(capsys, folder, tmp_path):
    more = [
        "--methods",
        "soft-reset",
        "--steps",
        2,
        "--rows",
        4,
        "--learning-rate",
        1e-2,
        "--out",
        tmp_path / "run",
        "--json",
    ]
    code, out, err = run(capsys, *asked(folder, "rivals", *more))
    assert code == 0 and err == ""
    found = json.loads(out)
    trained = [r for r in found["rivals"] if r["method"] == "untouched" and r["model"] != GIVEN]
    assert [r["tokens"] for r in trained] == [2 * 4 * T] * 2 and trained[0]["losses_far"] != trained[1]["losses_far"]
    assert Rivals.load(tmp_path / "run" / "results" / "rivals.json").to_json() == found
    page = (tmp_path / "run" / "report.html").read_text()
    assert "soft reset" in page and (tmp_path / "run" / "figures" / "rivals.svg").exists()
    again = run(capsys, *asked(folder, "rivals", *more))
    assert again == (0, out, "")


def test_the_control_arm_is_as_long_and_from_zero(folder, tmp_path):
    from lengthen import post_train

    for name, intervention, steps in (
        ("zero", "zero", 1),
        ("passed", "state-passing", 1),
        ("longer", "state-passing", 2),
    ):
        arm, out = load(folder / "model"), tmp_path / name
        post_train(arm, folder / "other.txt", train_context=T, steps=steps, intervention=intervention, rows=4, out=out)
    for control, passed, context, why in (
        ("passed", "zero", T, "starts from zero"),
        ("zero", "longer", T, "steps 1 and .* 2; train both alike"),
        ("zero", "mistyped", T, "mistyped holds no finished run"),
        ("zero", "passed", T // 2, rf"were trained at a context of {T}, but are to be held against one of {T // 2};"),
    ):
        with pytest.raises(InputError, match=why):
            rivals(
                wrap(tiny_mamba2()),
                folder / "text.txt",
                train_context=context,
                max_length=L,
                control=tmp_path / control,
                post_trained=tmp_path / passed,
            )


def test_what_is_wrong_is_told_before_anything_is_trained(folder, tmp_path):
    (tmp_path / "short.txt").write_text(text(60))
    for data, options, why in (
        (tmp_path / "short.txt", {"steps": 1}, "needs 33"),
        (folder / "text.txt", {"methods": ["soft-rest"]}, "perhaps 'soft-reset' was meant"),
        (folder / "text.txt", {"train_data": folder / "text.txt"}, "is the one to judge by"),
    ):
        out = tmp_path / "run"
        with pytest.raises(InputError, match=why):
            rivals(tiny_mamba2(), data, train_context=T, max_length=L, out=out, **options)
        assert not out.exists()
