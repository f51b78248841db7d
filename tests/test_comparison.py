"""lengthen compare: from run folders to a certificate as JSON, as Markdown and on the page."""

import dataclasses
import json

import pytest

from lengthen import compare
from lengthen.cli import main
from lengthen.errors import InputError
from lengthen.results import Bucket, Comparison, Diagnosis, SequenceLosses
from tests.reporting.example_results import training

EDGES, T, N = [0, 8, 16, 32, 64, 128, 256, 512], 8, 16


def diagnosis(model, far=0.0, tokens="same", fails=False):
    """Made-up losses: 2 nats, plus `far` past 32 T; each sequence has its own level, the same in every run."""
    levels = [0.01 * i for i in range(N)]
    carried = [[2 + level + far * (start >= 32 * T) * (1 + level) for start in EDGES[:-1]] for level in levels]
    reset = [[2 + level for _ in EDGES[:-1]] for level in levels]
    excess = [sum(c[i] - r[i] for c, r in zip(carried, reset)) / N for i in range(len(EDGES) - 1)]
    buckets = [Bucket(a, b, 2.1 + e, 0.01, 2.1, 0.01, e, 0.001, N) for a, b, e in zip(EDGES, EDGES[1:], excess)]
    return Diagnosis(
        model=model,
        family="mamba2",
        train_context=T,
        max_length=512,
        n=N,
        seed=0,
        buckets=buckets,
        in_context=8.1,
        in_context_stderr=0.1,
        far=9.0,
        far_stderr=0.1,
        own_reset=8.1,
        break_point=256 if fails else None,
        fails=fails,
        verdict="Fails." if fails else "No failure.",
        positions=[],
        states=[],
        sequences=SequenceLosses(carried, reset, tokens, 0),
    )


@pytest.fixture
def folders(tmp_path):
    def folder(name, found):
        found.save(tmp_path / name / "results" / "diagnosis.json")
        return tmp_path / name

    return [
        folder("before", diagnosis("a|model", far=1.0, fails=True)),
        folder("after", diagnosis("./repaired/model", far=0.001)),
        folder("control", diagnosis("./control/model", far=0.9, fails=True)),
    ]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return stopped.value.code, captured.out, captured.err


def test_a_certificate_in_every_form(capsys, folders, tmp_path):
    out = tmp_path / "certificate"
    code, printed, err = run(capsys, "compare", *folders, "--json", "--out", out)
    assert code == 0 and err == ""
    found = json.loads(printed)
    assert list(found["runs"]) == ["before", "after", "control"]
    (made,) = found["certificates"]
    assert made["repaired"] and (made["before"], made["after"], made["control"]) == ("before", "after", "control")
    assert Comparison.load(out / "results" / "comparison.json").certificates[0].verdict == made["verdict"]
    card = (out / "certificate.md").read_text()
    assert (
        card.startswith("## ")
        and made["verdict"] in card
        and "| far: 256 to 512 | after | control reset | +0.1 % |" in card
    )
    assert {line.count("|") for line in card.splitlines() if line.startswith("|")} == {6}
    page = (out / "report.html").read_text()
    assert made["verdict"].split(":")[0] in page and 'id="figure-certificate"' in page
    assert (out / "figures" / "certificate.svg").exists()


def test_in_words(capsys, folders):
    code, printed, _ = run(capsys, "compare", *folders)
    assert code == 0 and "Repaired: no failure is left" in printed and "Certificate of after" in printed
    assert all(name in printed for name in ("before", "after", "control"))


def test_the_control_arm_is_the_run_that_is_said(folders):
    before, after, control = folders
    assert compare(before, after).certificates[0].control is None
    moved = control.rename(control.with_name("zero"))
    assert compare(before, after, moved).certificates[1].after == "zero"
    for runs in ((before, after), (before, after, moved)):
        (made,) = compare(*runs, control=moved).certificates
        assert (made.after, made.control) == ("after", "zero")


def test_runs_on_other_data_stand_beside_but_get_no_certificate(capsys, folders):
    before, after, control = folders
    diagnosis("elsewhere", tokens="other").save(after / "results" / "diagnosis.json")
    found = compare(before, after)
    assert list(found.runs) == ["before", "after"] and found.certificates == []
    assert "different sequences" in found.unpaired["after"]
    code, printed, _ = run(capsys, "compare", before, after)
    assert code == 0 and "No certificate: before and after were judged on different sequences" in printed
    with pytest.raises(InputError, match="after were judged on different"):
        compare(before, control, control=after)


def test_folders_of_one_name_keep_apart(tmp_path):
    folders = [tmp_path / where / "run" for where in "ab"]
    for folder in folders:
        diagnosis("model").save(folder / "results" / "diagnosis.json")
    assert list(compare(*folders).runs) == ["run", str(folders[1])]


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_runs_are_refused(capsys, folders, count):
    code, out, err = run(capsys, "compare", *folders[:count])
    assert code == 2 and out == "" and "give at least two" in err and err.count("\n") == 1


def test_a_folder_without_a_diagnosis_is_named(folders, tmp_path):
    training().save(tmp_path / "trained" / "results" / "training.json")
    with pytest.raises(InputError, match="trained holds no diagnosis"):
        compare(folders[0], tmp_path / "trained")


def test_a_run_that_holds_no_losses_by_sequence_says_so(folders):
    old = dataclasses.replace(diagnosis("old"), sequences=None)
    old.save(folders[1] / "results" / "diagnosis.json")
    assert "diagnose it again" in compare(*folders[:2]).unpaired["after"]
