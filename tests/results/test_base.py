"""Results survive their JSON form, and what is no such file is refused in a sentence."""

import dataclasses
import json
import math

import pytest

from lengthen.errors import InputError
from lengthen.results import Bucket, Check, CheckResult, Patch, Recommendation, Result, SequenceLosses, write_text

CHECKS = CheckResult(
    "a model", "mamba2", False, [Check("segments", False, 0.5, 2e-5, "wrong"), Check("x", True, None, None, "")]
)


@pytest.mark.parametrize(
    "result",
    [
        CHECKS,
        Patch("layers.0", None, 0.25, 0.1),
        SequenceLosses([[1.0, 2.0], [3.0, 4.0]], [[1.5, 2.5], [3.5, 4.5]], "hash", None),
        Recommendation("rule", "finding", "advice", "state-passing", 500),
    ],
)
def test_what_is_saved_is_loaded(result: Result, tmp_path) -> None:
    assert type(result).load(result.save(tmp_path / "results" / "it.json")) == result


def test_a_number_that_is_not_finite_is_null_and_comes_back_as_nan(tmp_path) -> None:
    bucket = Bucket(0, 64, math.inf, 0.1, 2.0, 0.1, math.nan, 0.1, 2)
    path = bucket.save(tmp_path / "bucket.json")
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["loss"] is None and written["excess"] is None and written["stderr"] == 0.1
    found = Bucket.load(path)
    assert math.isnan(found.loss) and math.isnan(found.excess) and found.own_reset_loss == 2.0


def test_another_kind_or_schema_is_refused(tmp_path) -> None:
    path = CHECKS.save(tmp_path / "check.json")
    with pytest.raises(InputError, match=r"holds CheckResult \(schema 1\), but Bucket \(schema 1\) was expected"):
        Bucket.load(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**document, "schema_version": 2}), encoding="utf-8")
    with pytest.raises(InputError, match=r"holds CheckResult \(schema 2\)"):
        CheckResult.load(path)


@pytest.mark.parametrize("text", ['{"kind": "CheckRes', "[1, 2]", None])
def test_a_file_that_holds_no_result_is_refused(text: str | None, tmp_path) -> None:
    path = tmp_path / "check.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="is not a readable result file"):
        CheckResult.load(path)


def test_a_write_that_fails_leaves_what_stood_there(tmp_path, monkeypatch) -> None:
    path = write_text(tmp_path / "it.json", "before")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(InputError, match=r"it\.json cannot be written \(Permission denied\); choose another --out\."):
        write_text(path, "after")
    assert path.read_text(encoding="utf-8") == "before" and [p.name for p in tmp_path.iterdir()] == ["it.json"]


def test_no_result_can_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CHECKS.passed = True  # type: ignore[misc]
