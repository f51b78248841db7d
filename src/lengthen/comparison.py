"""compare(): runs side by side, and the certificate of each against the first.

A run is what a folder's results hold of diagnoses: one, or the arms of a demonstration.
"""

from __future__ import annotations

from pathlib import Path

from lengthen.diagnosis import certificate
from lengthen.diagnosis.certifying import why_unpaired
from lengthen.errors import InputError
from lengthen.reporting import certificate_markdown, write_report
from lengthen.reporting.run_folder import read_run
from lengthen.results import Comparison, Diagnosis, write_text


def compare(*runs: str | Path, control: str | Path | None = None, out: str | Path | None = None) -> Comparison:
    """Puts the diagnoses of run folders side by side and certifies each against the first, where they can be paired.

    runs: run folders, what is compared against first. control: the folder of the control arm, post-trained as long from
    the zero state (a demonstration's own is taken unless said). out: a run folder to write: results/, figures/,
    report.html, and certificate.md for a model card. Raises InputError where there are fewer than two diagnoses, or
    the control arm cannot be paired with the first.
    """
    found: dict[str, Diagnosis] = {}
    for run in map(Path, runs):
        found |= _diagnoses(run, found)
    first = next(iter(found), None)
    arm = _control(found, control)
    others = [name for name in found if name not in (first, arm)]
    if first is None or not others:
        raise InputError(
            f"There is nothing to compare{f' {first} with' if first else ''}; give at least two run folders of "
            "`lengthen diagnose`, such as before and after."
        )
    if arm is not None and (reason := why_unpaired(found[first], found[arm], first, arm)) is not None:
        raise InputError(reason)
    certificates, unpaired = [], {}
    for name in others:
        reason = why_unpaired(found[first], found[name], first, name)
        if reason is not None:
            unpaired[name] = reason
        elif arm is None:
            certificates.append(certificate(found[first], found[name], names=(first, name)))
        else:
            certificates.append(certificate(found[first], found[name], found[arm], names=(first, name, arm)))
    result = Comparison(found, certificates, unpaired)
    if out is not None:
        result.save(Path(out) / "results" / "comparison.json")
        if certificates:
            write_text(Path(out) / "certificate.md", "\n".join(map(certificate_markdown, certificates)))
        write_report(out)
    return result


def _diagnoses(folder: Path, known: dict[str, Diagnosis]) -> dict[str, Diagnosis]:
    """A run folder's diagnoses by name: the folder's where there is one, a demonstration's arms by theirs."""
    found = read_run(folder).diagnoses
    if not found:
        raise InputError(f"{folder} holds no diagnosis; give the run folder of `lengthen diagnose`.")
    if len(found) == 1:
        name = folder.resolve().name
        return {name if name not in known else str(folder): next(iter(found.values()))}
    return {name if name not in known else f"{folder}: {name}": d for name, d in found.items()}


def _control(found: dict[str, Diagnosis], folder: str | Path | None) -> str | None:
    """The control arm's name, its diagnosis added where it is not there yet: what is said, or a run named control."""
    if folder is None:
        return "control" if "control" in found else None
    own = _diagnoses(Path(folder), {})
    if len(own) != 1:
        raise InputError(f"{folder} holds {len(own)} diagnoses, but the control arm is one; give a folder with one.")
    ((name, diagnosis),) = own.items()
    if found.get(name) != diagnosis:
        name = name if name not in found else str(folder)
        found[name] = diagnosis
    return name
