"""Results to figures, tables and a page."""

from lengthen.reporting.model_card import certificate_markdown, study_markdown
from lengthen.reporting.tabulation import Table, bucket_table, positions_table, survey_table, table
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
