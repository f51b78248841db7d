"""A study's table, figures, page and Markdown: every setting once, ranges over seeds, failed runs named."""

import dataclasses
import math

from lengthen.reporting import study_markdown, table, write_report
from lengthen.reporting.figures import figures
from lengthen.reporting.run_folder import Findings
from lengthen.results import Arm, Spread, Study, StudyRow


def row(rate, arm, far, failed=()):
    def spread(middle):
        return Spread(middle, 0.9 * middle, 1.2 * middle)

    arms = [Arm(5.0, far, 5.4, 5.4, 5.4, far / 5.4, 0.1, 16)] * 2
    return StudyRow(
        [rate, arm],
        arms,
        in_context=spread(5.0),
        far=spread(far),
        own_reset=spread(5.4),
        far_over_before_reset=spread(far / 5.4),
        far_over_control_reset=spread(far / 5.4),
        in_context_over_control=spread(1.02),
        failed=list(failed),
    )


ROWS = [row("1e-3", "control", 54.0), row("1e-3", "state passing", 5.4), row("1", "control", math.nan, ["It is nan."])]
STUDY = Study("rates", "Which rate?", ["rate", "arm"], [3, 4], ROWS, 120.0)


def test_the_table_has_a_row_a_setting_with_ranges():
    found = table(STUDY)
    assert found.title == "rates: Which rate?" and found.columns[0] == "rate, arm"
    assert found.rows[0] == ["1e-3, control", "5.00 [4.50, 6.00]", "1.020 [0.918, 1.224]", *found.rows[0][3:]]
    assert found.rows[0][3:] == ["54.0 [48.6, 64.8]", "10.0 [9.000, 12.0]", "10.0 [9.000, 12.0]"]
    assert found.rows[2][3:] == ["–"] * 3 and "seeds 3, 4" in found.note


def test_the_figures_have_a_point_a_setting_and_say_what_is_left_out():
    findings = Findings()
    findings.add(STUDY, "rates")
    in_context, far = figures(findings)
    assert [in_context.name, far.name] == ["rates-in-context", "rates-far"]
    assert (in_context.points, far.points) == (3, 2) and "not finite: 1." in far.caption
    assert far.logarithmic and not in_context.logarithmic
    values = far.spec["data"]["values"]
    assert [(v["across"], v["series"]) for v in values] == [tuple(r.setting) for r in ROWS]
    assert values[0]["low"] < values[0]["value"] < values[0]["high"]
    assert [e.label for e in far.entries] == ["control", "state passing"]


def test_each_study_of_a_folder_has_the_first_colours_for_its_own_series():
    findings = Findings()
    findings.add(STUDY, "rates")
    other = [row("1", label, 54.0) for label in ("100 steps", "500 steps")]
    findings.add(dataclasses.replace(STUDY, name="steps", rows=other), "steps")
    found = {f.name: (f.series, [(e.label, e.index) for e in f.entries]) for f in figures(findings)}
    assert found["rates-far"] == (2, [("control", 0), ("state passing", 1)])
    assert found["steps-far"] == (2, [("100 steps", 0), ("500 steps", 1)])


def test_the_page_shows_all_studies_of_a_folder(tmp_path):
    STUDY.save(tmp_path / "results" / "rates.json")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "<h1>Study: rates</h1>" in page and "1e-3, state passing" in page and 'id="figure-rates-far"' in page
    assert (tmp_path / "figures" / "rates-in-context.png").stat().st_size > 1000
    dataclasses.replace(STUDY, name="more").save(tmp_path / "results" / "more.json")
    assert "<h1>2 studies</h1>" in write_report(tmp_path).read_text(encoding="utf-8")


def test_markdown_says_which_command_made_it_and_what_failed():
    text = study_markdown(STUDY)
    assert text.startswith("## rates\n") and "`lengthen study rates --seeds 2 --seed 3`" in text
    assert "| 1e-3, state passing | 5.00 [4.50, 6.00] |" in text and "1, control: It is nan." in text
