"""Results to figures, tables and a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lengthen.reporting.model_card import certificate_markdown, study_markdown
from lengthen.reporting.tabulation import Table, bucket_table, positions_table, survey_table, table

if TYPE_CHECKING:
    from lengthen.reporting.writing import write_report

__all__ = [
    "Table",
    "bucket_table",
    "certificate_markdown",
    "positions_table",
    "study_markdown",
    "survey_table",
    "table",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """write_report, imported when first used: the figures' library takes longer than all else that a table needs."""
    if name == "write_report":
        from lengthen.reporting.writing import write_report

        return write_report
    raise AttributeError(f"module 'lengthen.reporting' has no attribute {name!r}")
