"""What was set is listed whole: nested settings under dotted names, each result's own, versions once."""

import dataclasses

from lengthen.reporting.configuration import configuration_section
from tests.reporting.example_results import HOSTILE, VERSIONS, demonstration, diagnosis, evaluation, findings, training
from tests.reporting.outline import Outline


def listed(found):
    """Summary -> the settings under it."""
    outline, groups = Outline(configuration_section(found)), []
    for row in outline.rows:
        if row == ["setting", "value"]:
            groups.append({})
        else:
            name, value = row
            assert name not in groups[-1]
            groups[-1][name] = value
    return dict(zip(outline.texts["summary"], groups, strict=True))


def test_nested_settings_are_dotted_names_and_nothing_is_lost():
    settings = {"a": {"b": {"c": 1}, "empty": {}}, "list": [1, "x"], "none": None, "nothing": [], HOSTILE: HOSTILE}
    shown = listed(findings(dataclasses.replace(diagnosis("m"), configuration=settings)))["Diagnosis: m"]
    assert {name: shown[name] for name in list(shown)[4:]} == {
        "a.b.c": "1",
        "a.empty": "none",
        "list": "1, x",
        "none": "none",
        "nothing": "none",
        HOSTILE: HOSTILE,
    }
    assert list(shown.items())[:4] == [
        ("train_context", "64"),
        ("max_length", "4096"),
        ("seed", "0"),
        ("sequences", "16"),
    ]


def test_every_result_has_its_settings_and_versions_stand_once():
    newer = dataclasses.replace(training(), versions=VERSIONS | {"numpy": "2.0"})
    shown = listed(findings(diagnosis("m"), newer, evaluation("m")))
    assert list(shown) == ["Training: state-passing", "Diagnosis: m", "Tasks: m", "Versions"]
    assert shown["Versions"] == VERSIONS | {"numpy": "2.0"} and shown["Tasks: m"] == {"seed": "0", "n": "50"}
    assert shown["Training: state-passing"]["intervention.zero_fraction"] == "0.25"


def test_arms_are_diagnosed_as_the_demonstration_is_set():
    """So that only what stands beside it has a diagnosis's settings of its own."""
    shown = listed(findings(demonstration(), diagnosis("other")))
    assert shown["Demonstration"]["recipe.decay_range"] == "0.005, 0.1"
    assert [name for name in shown if name.startswith("Diagnosis")] == ["Diagnosis: other"]
    assert sum(name.startswith("Training") for name in shown) == 6


def test_the_command_is_shown_where_there_is_one():
    found = findings(diagnosis())
    assert "code" not in Outline(configuration_section(found)).texts
    found.command = f"lengthen diagnose {HOSTILE}"
    assert "".join(Outline(configuration_section(found)).texts["code"]) == found.command
