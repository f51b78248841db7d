"""What was found, in sentences: verdicts, recommendations, certificates."""

from __future__ import annotations

from lengthen.reporting.charts import Entry, Figure
from lengthen.reporting.legend import swatch
from lengthen.reporting.markup import Markup, escaped, join, tag
from lengthen.reporting.model_card import certificate_markdown
from lengthen.reporting.page_figures import figure_element
from lengthen.reporting.page_tables import details, table_element
from lengthen.reporting.points import series_of
from lengthen.reporting.run_folder import Findings, arm_label
from lengthen.reporting.tabulation import table
from lengthen.results import CheckResult, Diagnosis, Recommendation


def verdicts(findings: Findings) -> Markup:
    """What was found, a sentence for each, and what a demonstration is not."""
    names = series_of(findings)
    arms = findings.arms() - {arm_label("before")}  # which have done what was advised
    items = [
        _verdict(_status_of(d), name, d.verdict, names.index(name), "" if name in arms else _advice(d.recommendation))
        for name, d in findings.diagnoses.items()
    ]
    checks = list(findings.checks.values())
    if len(checks) == 1:
        items.append(
            _verdict("holds" if checks[0].passed else "fails", f"Parity of {checks[0].model}", _outcome(checks[0]))
        )
    elif checks:
        passed = sum(c.passed for c in checks)
        sentence = f"{passed} of {len(checks)} models pass every check."
        items.append(_verdict("holds" if passed == len(checks) else "fails", "Parity", sentence))
    caveat = tag("p", findings.demonstration.caveat, class_="caveat") if findings.demonstration else ""
    return join(caveat, tag("ul", *items, class_="verdicts")) if items else Markup("")


def _outcome(check: CheckResult) -> str:
    failed = [c.name for c in check.checks if not c.passed]
    if not failed:
        return f"The recurrent state is carried: {len(check.checks)} checks passed."
    return f"{len(failed)} of {len(check.checks)} checks failed: {', '.join(failed)}."


_STATUS = {"fails": ("✕", "fails"), "holds": ("✓", "holds"), "open": ("?", "no verdict")}


def _status_of(diagnosis: Diagnosis) -> str:
    return {True: "fails", False: "holds", None: "open"}[diagnosis.fails]


def _verdict(status: str, name: str, sentence: str, index: int | None = None, more: Markup | str = "") -> Markup:
    sign, word = _STATUS[status]
    mark = tag("span", sign, class_="sign", role="img", aria_label=word)
    label = tag("b", swatch(Entry(name, index, False)) if index is not None else "", name)
    return tag("li", mark, tag("div", label, tag("span", sentence), more), class_=status)


def _advice(recommendation: Recommendation | None) -> Markup:
    """What to do, with the facts and the rule that it follows from."""
    if recommendation is None:
        return Markup("")
    rule = recommendation.rule.replace("_", " ")
    reason = tag("span", f"Because: {recommendation.finding} (Rule “{rule}”.)", class_="reason")
    return tag("p", tag("b", "What to do: "), recommendation.advice, " ", reason, class_="advice")


def certificates(findings: Findings, figures: dict[str, Figure]) -> Markup:
    """Each certificate: its verdict, its differences, and how it stands in a model card."""
    if not findings.certificates and not findings.unpaired:
        return Markup("")
    names = series_of(findings)
    items = [
        _verdict({True: "holds", False: "fails", None: "open"}[c.repaired], c.after, c.verdict, names.index(c.after))
        for c in findings.certificates
    ]
    items += [
        _verdict("open", name, f"No certificate: {reason}", names.index(name))
        for name, reason in findings.unpaired.items()
    ]
    tables = [table_element(table(c)) for c in findings.certificates]
    cards = [tag("pre", escaped(certificate_markdown(c)), class_="scroll", tabindex=0) for c in findings.certificates]
    return join(
        tag("ul", *items, class_="verdicts"),
        figure_element(figures.get("certificate")),
        details("Differences, in numbers", join(*tables)) if tables else "",
        details("As Markdown, for a model card", join(*cards)) if cards else "",
    )
