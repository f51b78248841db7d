"""Results in a terminal: the page's strings, none of them cut or read as markup, and the sentence that says it."""

import dataclasses

import pytest

from lengthen.reporting import table, terminal
from lengthen.reporting.terminal import show
from lengthen.results import (
    BenchmarkEntry,
    BenchmarkResult,
    Conversion,
    Result,
    SupportedClass,
    SupportTable,
    TrainingPlan,
)
from tests.reporting.example_results import (
    HOSTILE,
    RECOMMENDED,
    SEVERITY,
    certificate,
    check,
    comparison,
    demonstration,
    diagnosis,
    evaluation,
    rival_study,
    rivals,
    study,
    task_study,
    training,
)


def test_terminal_shows_the_same_strings(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    for result in (demonstration(), diagnosis("[red]model"), training(), check(), comparison()):
        terminal.show(result)
    shown = capsys.readouterr().out
    assert "[red]model" in shown, "a name is not markup"
    assert demonstration().caveat in shown and diagnosis().verdict in shown
    assert certificate().verdict in shown and f"No certificate: {comparison().unpaired[HOSTILE]}" in shown
    for name in SEVERITY:
        assert ("TBPTT" if name == "tbptt" else name.replace("_", " ")) in shown
    assert all(cell in shown for row in table(demonstration()).rows for cell in row)


def test_a_narrow_terminal_cuts_no_number_and_no_word(capsys, monkeypatch):
    """Words stand on both sides of the numbers; they wrap between words."""
    monkeypatch.setenv("COLUMNS", "24")
    terminal.checks(dataclasses.replace(check(), passed=False))
    shown = capsys.readouterr().out
    assert {word for row in table(check()).rows for cell in row for word in cell.split()} <= set(shown.split())


@pytest.mark.parametrize("width", [20, 60, 66, 70, 74, 78, 80, 82, 90])
def test_no_width_cuts_a_certificate(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    found = table(certificate())
    terminal.show(certificate())
    shown = capsys.readouterr().out
    for text in (*found.columns, *(cell for row in found.rows for cell in row), found.note):
        assert set(text.split()) <= set(shown.split())


def test_names_stay_whole_in_a_terminal(capsys, monkeypatch):
    """However narrow it is: it wraps lines, which can be read."""
    monkeypatch.setenv("COLUMNS", "60")
    show(evaluation())
    told = capsys.readouterr().out
    assert all(f" {task} " in told for task in ("passkey", "niah-single", "copying"))
    assert "95 (86 to 100)" in told and "Of 9,000,000 tokens" in " ".join(told.split())


def shown(capsys, monkeypatch, result, tell=show):
    monkeypatch.setenv("COLUMNS", "200")
    tell(result)
    return capsys.readouterr().out


def test_a_diagnosis_ends_with_its_verdict_and_what_to_do(capsys, monkeypatch):
    lines = shown(capsys, monkeypatch, diagnosis()).splitlines()
    assert lines[-2:] == [diagnosis().verdict, f"{RECOMMENDED.finding} {RECOMMENDED.advice}"]
    titles = [
        "Ranges of positions",
        "What still counts of the past",
        "Heads outside what training shows",
        "State patching",
    ]
    assert all(title in map(str.strip, lines) for title in titles)
    bare = dataclasses.replace(diagnosis(), remembrance=None, drift=None, patching=None, recommendation=None)
    told = shown(capsys, monkeypatch, bare)
    assert told.splitlines()[-1] == diagnosis().verdict and not any(title in told for title in titles[1:])


def test_what_a_failure_would_do_is_told_only_where_there_is_one(capsys, monkeypatch):
    meaning = "read wrongly wherever they are cut"
    assert meaning in shown(capsys, monkeypatch, check(passed=False), terminal.checks)
    passed = shown(capsys, monkeypatch, check(), terminal.checks)
    assert meaning not in passed and all(c.name in passed for c in check().checks)


def test_several_models_are_told_a_row_each(capsys, monkeypatch):
    lines = shown(capsys, monkeypatch, [check("one"), check("[b]two", passed=False)], terminal.survey).splitlines()
    told = [line.split() for line in lines]
    assert ["one", "mamba2", "passed", "yes", "none"] in told
    assert ["[b]two", "mamba2", "FAILED", "no", "segments"] in told


def test_what_is_left_out_is_said_after_the_rivals(capsys, monkeypatch):
    told = shown(capsys, monkeypatch, rivals())
    assert told.index("Rivals: stock") < told.index("What the heads keep") < told.index("Left out: narrow needs")


@pytest.mark.parametrize("result", [study(), task_study(), rival_study()], ids=lambda r: r.name)
def test_a_study_begins_with_its_question(capsys, monkeypatch, result):
    told = shown(capsys, monkeypatch, result)
    assert result.question in told.splitlines()[0]
    rows = {"rates": "1e-3, state passing", "learn": "TBPTT", "rivals": "mild (seed 0)"}
    assert rows[result.name] in told


def test_a_plan_adds_up_its_memory(capsys, monkeypatch):
    sizes = {"weights": 1, "gradients": 2, "optimiser": 3, "states": 4, "bank": 5, "activations": 6}
    parts = {name: size << 28 for name, size in sizes.items()}
    plan = TrainingPlan("m", 10**6, 2, True, 100, 10**7, 10**5, 4, 1 << 20, **parts, memory=sum(parts.values()))
    lines = shown(capsys, monkeypatch, plan).splitlines()
    assert lines[0] == "m: 1,000,000 parameters, 2 processes, sharded"
    told = dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))
    assert told.pop("together") == "5.25 GiB" and list(told) == list(sizes)
    assert [told[name] for name in ("weights", "optimiser", "activations")] == ["256.00 MiB", "768.00 MiB", "1.50 GiB"]
    assert "a row's state takes 1.00 MiB" in lines[2]
    alone = shown(capsys, monkeypatch, dataclasses.replace(plan, processes=1, sharded=False))
    assert alone.startswith("m: 1,000,000 parameters, 1 process\n")


def test_a_benchmark_tells_what_was_measured_and_what_was_not(capsys, monkeypatch):
    entry = BenchmarkEntry("ssd", "B 1", 2048, "forward", "transformers", 3.14, None, None, 1e5)
    full = dataclasses.replace(entry, memory_ratio=2.0, ceiling_share=0.5)
    told = shown(capsys, monkeypatch, BenchmarkResult(1, 5, 50.0, [entry, full], ["[b]fla needs a GPU"]))
    assert told.splitlines() == [
        "ssd, B 1, 2048 forward: 3.1 times transformers",
        "ssd, B 1, 2048 forward: 3.1 times transformers, 2.0 times less memory, 50 % of the matrix product's rate",
        "left out: [b]fla needs a GPU",
    ]


def test_a_conversion_tells_from_where_to_where(capsys, monkeypatch):
    result = Conversion("a", "b", "mamba_ssm", "transformers", "mamba2", 12, 3456, ["float32", "bfloat16"], 64, 1.5e-6)
    assert shown(capsys, monkeypatch, result).splitlines() == [
        "a (mamba_ssm) -> b (transformers): mamba2, 12 tensors, 3,456 parameters, float32, bfloat16",
        "Largest difference of logits over 64 tokens: 1.5e-06",
    ]


def test_supported_classes_are_told_under_their_family_and_refused_ones_with_why(capsys, monkeypatch):
    classes = [
        SupportedClass("fla", "GLAForCausalLM", [], "gla", ["gla"], {"initial state": True, "gradients": False}),
        SupportedClass("transformers", "Mamba2ForCausalLM", [], "ssd", ["ssd"], {"initial state": True}),
    ]
    found = SupportTable(classes, {"Jamba": "Jamba mixes attention in."}, {"fla": "0.6"})
    lines = [line.split() for line in shown(capsys, monkeypatch, found).splitlines()]
    assert lines.index(["gla", "(fla)"]) + 1 == lines.index(["GLA", "yes", "NO"])
    assert lines.index(["ssd", "(transformers)"]) + 1 == lines.index(["Mamba2", "yes", "–"])
    assert lines[-1] == ["Refused:", *["Jamba", "mixes", "attention", "in."]]


def test_a_result_without_a_form_here_is_a_type_error():
    with pytest.raises(TypeError, match="no table for Result"):
        show(Result())
