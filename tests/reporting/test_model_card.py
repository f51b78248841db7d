"""Markdown for a model card: whole tables, the command that made them, and names that stay names."""

import dataclasses
import re

import pytest

from lengthen.reporting import certificate_markdown, study_markdown
from lengthen.reporting.rival_tables import rival_study_tables
from lengthen.reporting.tabulation import table
from lengthen.reporting.task_tables import task_study_table
from tests.reporting.example_results import certificate, rival_study, study, task_study


def test_a_certificate_as_table_and_markdown():
    shown = table(certificate())
    card = certificate_markdown(dataclasses.replace(certificate(), after="a `b`\n# c | d"))
    lines = [line for line in card.splitlines() if line.startswith("|")]
    assert [line.count("|") for line in lines] == [6] * (2 + len(shown.rows)) and certificate().verdict in card
    assert "after: `` a `b` # c | d ``" in card and "\n# " not in card, "a name cannot become markup"


def test_markdown_says_which_command_made_it_and_what_failed():
    text = study_markdown(study())
    assert text.startswith("## rates\n") and "`lengthen study rates --seeds 2 --seed 3`" in text
    assert "| 1e-3, state passing | 5.00 [4.50, 6.00] |" in text and "1, control: It is nan." in text


def rows(markdown):
    """The tables' rows, as cells."""
    return [line[2:-2].split(" | ") for line in markdown.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("name", ["plain", "./a b", "a`b", "`", "``` ```", "a\n\n# b"])
def test_a_name_is_one_span_of_code(name):
    """A span ends at as many backticks as it began with, and loses one space at either end."""
    text = certificate_markdown(dataclasses.replace(certificate(), after=name))
    fence, code = re.search(r"after: (`+)(?!`)(.*?)(?<!`)\1(?!`), control", text).groups()
    assert (code if len(fence) == 1 else code[1:-1]) == " ".join(name.split())


def test_a_run_without_a_control_names_none():
    text = certificate_markdown(certificate(control=None))
    assert "Before: `before`, after: `state_passing`." in text and "control:" not in text


def test_a_study_of_tasks_is_its_table():
    found, text = task_study_table(task_study()), study_markdown(task_study())
    header, rule, *cells = rows(text)
    assert [header, *cells] == [found.columns, *found.rows] and rule == ["---", "---:", "---:", "---:"]
    assert text.startswith("## learn\n") and text.endswith(found.note + "\n")
    assert "What is learnt? `lengthen study learn --seeds 2`" in text


def test_a_study_of_rivals_has_a_table_for_each_base():
    tables, text = rival_study_tables(rival_study()), study_markdown(rival_study())
    assert re.findall("^### (.*)$", text, re.M) == [t.title for t in tables]
    assert [row for row in rows(text) if row[0] and row[0] != "---"] == [row for t in tables for row in t.rows]
    assert text.count(tables[0].note) == 1 and "`lengthen study rivals --seeds 2`" in text
