"""A run folder is read whole, or refused in a sentence that names the file."""

import json

import pytest

from lengthen.errors import InputError
from lengthen.reporting.run_folder import read_run
from tests.reporting.example_results import check, demonstration, diagnosis, findings, training


def test_reads_every_kind(tmp_path):
    demonstration().save(tmp_path / "results" / "demonstration.json")
    diagnosis("before").save(tmp_path / "results" / "a.json")
    training().save(tmp_path / "results" / "training.json")
    for i in (2, 10):
        check(f"model {i}").save(tmp_path / "results" / f"check-{i}.json")
    (tmp_path / "run.json").write_text('{"arguments": ["demo", "--seed", 0]}')
    found = read_run(tmp_path)
    assert found.demonstration == demonstration()
    assert list(found.diagnoses) == [
        "before",
        "control",
        "random noise",
        "fitted noise",
        "state passing",
        "TBPTT",
        "before (a)",
    ], "the arms keep their names"
    assert "state passing" in found.trainings and "state-passing" in found.trainings
    assert list(found.checks) == ["demonstration", "model 2", "model 10"]
    assert found.command == "lengthen demo --seed 0"


def test_a_kind_without_a_place_is_named(tmp_path):
    diagnosis().save(tmp_path / "results" / "a.json")
    (tmp_path / "results" / "b.json").write_text('{"kind": "Later", "schema_version": 1}')
    assert read_run(tmp_path).others == [("b.json", "Later")]


def test_no_folder_and_no_results(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / ".a.json.1.tmp").write_text("{")
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match="holds no results"):
            read_run(folder)


def _without(document, name):
    return {key: value for key, value in document.items() if key != name}


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: json.dumps(d)[:-20],
        lambda d: "[]",
        lambda d: json.dumps(_without(d, "buckets")),
        lambda d: json.dumps(d | {"buckets": 3}),
        lambda d: json.dumps(d | {"unknown": 3}),
        lambda d: json.dumps(d | {"schema_version": 99}),
    ],
    ids=["cut", "no object", "field missing", "field of another type", "unknown field", "another schema"],
)
def test_a_damaged_result_is_named(tmp_path, damage):
    file = diagnosis().save(tmp_path / "results" / "a.json")
    file.write_text(damage(json.loads(file.read_text())))
    with pytest.raises(InputError, match=r"a\.json .*again"):
        read_run(tmp_path)


def test_two_demonstrations_are_refused(tmp_path):
    for name in ("demonstration", "other"):
        demonstration().save(tmp_path / "results" / f"{name}.json")
    with pytest.raises(InputError, match="second demonstration"):
        read_run(tmp_path)


def test_results_of_one_name_keep_apart():
    found = findings(diagnosis("same"), diagnosis("same", 0))
    assert list(found.diagnoses) == ["same", "same (file-1)"]
