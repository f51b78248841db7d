"""Tables as Markdown: a certificate, to stand in a model card, and a study."""

from __future__ import annotations

from lengthen.reporting.rival_tables import rival_study_tables
from lengthen.reporting.tabulation import Table, certificate_table, table
from lengthen.reporting.task_tables import task_study_table
from lengthen.results import Certificate, RivalStudy, Study, TaskStudy


def certificate_markdown(certificate: Certificate) -> str:
    """A heading, the verdict and the table of differences; names are code, so that none of them is read as Markdown."""
    found = certificate_table(certificate)
    named = [("Before", certificate.before), ("after", certificate.after), ("control", certificate.control)]
    runs = ", ".join(f"{role}: {_code(name)}" for role, name in named if name is not None)
    facts = (
        f"Training context {certificate.train_context:,}, judged up to {certificate.max_length:,} positions on "
        f"{certificate.n} sequences (seed {certificate.seed}, tokens sha256 `{certificate.tokens[:16]}`)."
    )
    parts = ["## Length generalisation", f"{runs}.", certificate.verdict, _rows(found), f"{found.note} {facts}"]
    return "\n\n".join(parts) + "\n"


def study_markdown(study: Study | TaskStudy | RivalStudy) -> str:
    """A heading, the command that made it, the question and the table, or a table for each base."""
    first = "" if study.seeds[0] == 0 else f" --seed {study.seeds[0]}"
    command = f"`lengthen study {study.name} --seeds {len(study.seeds)}{first}`"
    if isinstance(study, RivalStudy):
        tables = rival_study_tables(study)
        parts = [part for found in tables for part in (f"### {found.title}", _rows(found))]
        return "\n\n".join([f"## {study.name}", f"{study.question} {command}", *parts, tables[0].note]) + "\n"
    found = table(study) if isinstance(study, Study) else task_study_table(study)
    rows = study.rows if isinstance(study, Study) else []
    failed = [f"{', '.join(row.setting)}: {why}" for row in rows for why in dict.fromkeys(row.failed)]
    return "\n\n".join([f"## {study.name}", f"{study.question} {command}", _rows(found), found.note, *failed]) + "\n"


def _rows(found: Table) -> str:
    header = [found.columns, ["---" if i in found.texts else "---:" for i in range(len(found.columns))]]
    return "\n".join("| " + " | ".join(row) + " |" for row in [*header, *found.rows])


def _code(name: str) -> str:
    """The name between backticks, more of them than it holds in a row itself; line breaks have no place in one."""
    fence = "`"
    while fence in name:
        fence += "`"
    return f"{fence} {' '.join(name.split())} {fence}" if "`" in name else f"`{' '.join(name.split())}`"
