"""A certificate as Markdown, to stand in a model card."""

from __future__ import annotations

from lengthen.reporting.tabulation import certificate_table
from lengthen.results import Certificate


def certificate_markdown(certificate: Certificate) -> str:
    """A heading, the verdict and the table of differences; names are code, so that none of them is read as Markdown."""
    found = certificate_table(certificate)
    header = [found.columns, ["---" if i in found.texts else "---:" for i in range(len(found.columns))]]
    rows = ["| " + " | ".join(row) + " |" for row in [*header, *found.rows]]
    named = [("Before", certificate.before), ("after", certificate.after), ("control", certificate.control)]
    runs = ", ".join(f"{role}: {_code(name)}" for role, name in named if name is not None)
    facts = (
        f"Training context {certificate.train_context:,}, judged up to {certificate.max_length:,} positions on "
        f"{certificate.n} sequences (seed {certificate.seed}, tokens sha256 `{certificate.tokens[:16]}`)."
    )
    parts = ["## Length generalisation", f"{runs}.", certificate.verdict, "\n".join(rows), f"{found.note} {facts}"]
    return "\n\n".join(parts) + "\n"


def _code(name: str) -> str:
    """The name between backticks, more of them than it holds in a row itself; line breaks have no place in one."""
    fence = "`"
    while fence in name:
        fence += "`"
    return f"{fence} {' '.join(name.split())} {fence}" if "`" in name else f"`{' '.join(name.split())}`"
