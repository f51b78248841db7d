"""What was found, in sentences: a verdict for every result, what to do where it helps, each in its curve's look."""

import dataclasses

from lengthen.reporting import certificate_markdown
from lengthen.reporting.figures import figures
from lengthen.reporting.page_findings import certificates, verdicts
from tests.reporting.example_results import (
    HOSTILE,
    RECOMMENDED,
    check,
    comparison,
    demonstration,
    diagnosis,
    findings,
    training,
)
from tests.reporting.outline import Outline


def test_what_is_not_paired_and_how_a_certificate_stands_in_a_model_card():
    found = findings(comparison())
    outline = Outline(certificates(found, {f.name: f for f in figures(found)}))
    text = outline.texts
    assert "figure-certificate" in outline.ids
    assert "No certificate: They were judged on different sequences." in text["span"]
    assert text["pre"] == [certificate_markdown(comparison().certificates[0])]


def test_a_diagnosis_fails_holds_or_has_no_verdict():
    undecided = dataclasses.replace(diagnosis(HOSTILE), fails=None, recommendation=None)
    outline = Outline(verdicts(findings(diagnosis("bad"), diagnosis("good", 0), undecided)))
    assert outline.values("class", "li") == ["fails", "holds", "open"]
    assert outline.values("aria-label") == ["fails", "holds", "no verdict"]
    assert "".join(outline.texts["b"]).replace("What to do: ", "") == f"badgood{HOSTILE}"
    assert outline.values("class", "svg") == [f"swatch s{i}" for i in range(3)], "the curves' colours"


def test_advice_comes_with_what_it_follows_from_and_not_where_it_was_done():
    outline = Outline(verdicts(findings(diagnosis("bad"), diagnosis("good", 0))))
    assert "".join(outline.texts["p"]).count(RECOMMENDED.advice) == 1
    reason = "".join(outline.texts["span"])
    assert f"Because: {RECOMMENDED.finding} (Rule “{RECOMMENDED.rule}”.)" in reason
    arms = Outline(verdicts(findings(demonstration())))
    assert "".join(arms.texts["p"]).count(RECOMMENDED.advice) == 1, "the arms after have done it"
    assert arms.texts["p"][0] == demonstration().caveat


def test_one_model_that_fails_its_checks_is_told_which():
    failed = Outline(verdicts(findings(check("m", passed=False))))
    assert failed.values("class", "li") == ["fails"] and failed.texts["b"] == ["Parity of m"]
    assert "1 of 3 checks failed: segments." in failed.texts["span"]
    held = Outline(verdicts(findings(check("m"))))
    assert held.values("class", "li") == ["holds"] and "3 checks passed." in "".join(held.texts["span"])


def test_several_models_are_counted():
    outline = Outline(verdicts(findings(check("a"), check("b"), check("c", passed=False))))
    assert outline.values("class", "li") == ["fails"] and "2 of 3 models pass every check." in outline.texts["span"]
    assert Outline(verdicts(findings(check("a"), check("b")))).values("class", "li") == ["holds"]


def test_a_certificate_says_whether_the_model_was_repaired():
    found = findings(comparison())
    for repaired, status in ((True, "holds"), (False, "fails"), (None, "open")):
        found.certificates = [dataclasses.replace(found.certificates[0], repaired=repaired)]
        assert Outline(certificates(found, {})).values("class", "li") == [status, "open"]


def test_where_nothing_was_judged_nothing_is_said():
    assert verdicts(findings(training())) == certificates(findings(training(), diagnosis()), {}) == ""
