"""What a run folder holds: its results/*.json, each by its kind."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lengthen.errors import InputError
from lengthen.results import (
    Certificate,
    CheckResult,
    Comparison,
    Demonstration,
    Diagnosis,
    Evaluation,
    Result,
    Rivals,
    RivalStudy,
    Study,
    TaskStudy,
    TrainingRecord,
)

KINDS: dict[str, type[Result]] = {
    kind.__name__: kind
    for kind in (
        Demonstration,
        Comparison,
        Diagnosis,
        TrainingRecord,
        CheckResult,
        Evaluation,
        Study,
        TaskStudy,
        Rivals,
        RivalStudy,
    )
}


@dataclass
class Findings:
    """A run folder's results, each under the name a reader sees; a demonstration's parts stand under their arms.

    certificates: of a comparison's runs; unpaired: run -> why it has none. others: result files of a kind that has no
    place on the page, as (file name, kind). command: what run.json says was run, if there is one.
    """

    demonstration: Demonstration | None = None
    diagnoses: dict[str, Diagnosis] = field(default_factory=dict)
    trainings: dict[str, TrainingRecord] = field(default_factory=dict)
    checks: dict[str, CheckResult] = field(default_factory=dict)
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    studies: dict[str, Study] = field(default_factory=dict)
    task_studies: dict[str, TaskStudy] = field(default_factory=dict)
    rivals: dict[str, Rivals] = field(default_factory=dict)
    rival_studies: dict[str, RivalStudy] = field(default_factory=dict)
    certificates: list[Certificate] = field(default_factory=list)
    unpaired: dict[str, str] = field(default_factory=dict)
    others: list[tuple[str, str]] = field(default_factory=list)
    command: str = ""

    def add(self, result: Result, file: str) -> None:
        """Adds a result from results/`file`."""
        if isinstance(result, Demonstration):
            if self.demonstration is not None:
                raise InputError(f"{file} is a second demonstration in one run folder; give each a folder of its own.")
            self.demonstration = result
            self.diagnoses = {arm_label(name): d for name, d in result.diagnoses.items()} | self.diagnoses
            self.trainings = {arm_label(name): t for name, t in result.trainings.items()} | self.trainings
            self.certificates += [
                replace(
                    c, before=arm_label(c.before), after=arm_label(c.after), control=arm_label(c.control or "control")
                )
                for c in result.certificates
            ]
            _put(self.checks, result.parity.model, result.parity, file)
        elif isinstance(result, Comparison):
            for name, diagnosis in result.runs.items():
                _put(self.diagnoses, name, diagnosis, file)
            self.certificates += result.certificates
            self.unpaired |= result.unpaired
        elif isinstance(result, Diagnosis):
            _put(self.diagnoses, result.model, result, file)
        elif isinstance(result, TrainingRecord):
            _put(self.trainings, result.intervention, result, file)
        elif isinstance(result, CheckResult):
            _put(self.checks, result.model, result, file)
        elif isinstance(result, Evaluation):
            _put(self.evaluations, result.model, result, file)
        elif isinstance(result, Study):
            _put(self.studies, result.name, result, file)
        elif isinstance(result, TaskStudy):
            _put(self.task_studies, result.name, result, file)
        elif isinstance(result, Rivals):
            _put(self.rivals, result.model, result, file)
        elif isinstance(result, RivalStudy):
            _put(self.rival_studies, result.name, result, file)

    def arms(self) -> set[str]:
        """The labels of a demonstration's arms."""
        return {arm_label(name) for name in self.demonstration.arms} if self.demonstration else set()


def arm_label(name: str) -> str:
    """An arm's name as a reader sees it."""
    return "TBPTT" if name == "tbptt" else name.replace("_", " ")


def read_run(folder: Path) -> Findings:
    """Reads every result of a run folder.

    Raises InputError where there is no such folder, where it holds no results, or where one is damaged.
    """
    files = sorted((folder / "results").glob("[!.]*.json"), key=_in_order)
    if not files:
        raise InputError(f"{folder} holds no results (results/*.json); run a command with --out {folder} first.")
    findings = Findings(command=_command(folder / "run.json"))
    for file in files:
        name = str(_document(file).get("kind"))
        if name not in KINDS:
            findings.others.append((file.name, name))
            continue
        try:
            result = KINDS[name].load(file)
        except (TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{file} is not a whole {name} ({error}); run the command that writes it again.") from None
        findings.add(result, file.stem)
    return findings


def _put(named: dict[str, Any], name: str, result: Result, file: str) -> None:
    """Under its own name, or with its file's beside it where that name is taken."""
    name = name or file
    named[name if name not in named else f"{name} ({file})"] = result


def _in_order(file: Path) -> tuple[bool, str, int]:
    """A demonstration first, so that its arms keep their places; then by name, with check-10 after check-9."""
    stem, _, number = file.stem.rpartition("-")
    named = (stem, int(number)) if stem and number.isdecimal() else (file.stem, 0)
    return file.stem != "demonstration", *named


def _document(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{file} is not a readable result file ({error}); run the command that writes it again."
        ) from None
    if not isinstance(document, dict):
        raise InputError(f"{file} is not a result file; run the command that writes it again.")
    return document


def _command(file: Path) -> str:
    """The command line run.json names, for the configuration."""
    if not file.exists():
        return ""
    arguments = _document(file).get("arguments", [])
    return " ".join(["lengthen", *map(str, arguments)]) if isinstance(arguments, list) else ""
