"""What was set, for every result: settings and versions, folded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lengthen.reporting.markup import Markup, join, tag
from lengthen.reporting.page_tables import details, table_element
from lengthen.reporting.run_folder import Findings
from lengthen.reporting.tabulation import Table


def configuration_section(findings: Findings) -> Markup:
    """The command, the settings of each result, the versions."""
    command = tag("div", tag("code", findings.command), class_="scroll command", tabindex=0) if findings.command else ""
    run = findings.demonstration
    folded = []
    if run is not None:
        folded.append(
            _folded("Demonstration", {"train_context": run.train_context, "seed": run.seed, **run.configuration})
        )
    arms = findings.arms()
    for name, r in findings.trainings.items():
        shown = {"rows": r.rows, "learning_rate": r.learning_rate, "seed": r.seed, "steps": r.steps, **r.configuration}
        folded.append(_folded(f"Training: {name}", {"model": r.model, **shown}))
    for name, d in findings.diagnoses.items():
        if name not in arms:
            shown = {"train_context": d.train_context, "max_length": d.max_length, "seed": d.seed, "sequences": d.n}
            folded.append(_folded(f"Diagnosis: {name}", {**shown, **d.configuration}))
    everything = [run, *findings.diagnoses.values(), *findings.trainings.values(), *findings.evaluations.values()]
    for name, e in findings.evaluations.items():
        folded.append(_folded(f"Tasks: {name}", {"seed": e.seed, **e.configuration}))
    versions = {
        name: version for result in everything if result is not None for name, version in result.versions.items()
    }
    if versions:
        folded.append(_folded("Versions", versions))
    return join(command, *folded)


def _folded(title: str, settings: Mapping[str, Any]) -> Markup:
    rows = [list(pair) for pair in _flat(settings)]
    return details(title, table_element(Table(title, ["setting", "value"], rows, frozenset({0, 1})), titled=False))


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as dotted names."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{name}", ", ".join(map(str, value)) or "none"
        else:
            yield f"{prefix}{name}", "none" if value is None or value == {} else str(value)
