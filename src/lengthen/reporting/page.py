"""The page: one HTML file that shows findings and figures; it computes nothing and escapes all it shows."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from lengthen.reporting.configuration import configuration_section
from lengthen.reporting.figures import Entry, Figure
from lengthen.reporting.legend import legend, swatch
from lengthen.reporting.markup import Markup, inline_script, join, json_script, tag
from lengthen.reporting.page_tables import details, table_element
from lengthen.reporting.palette import DARK, LIGHT, Theme, chart_config
from lengthen.reporting.points import series_of
from lengthen.reporting.run_folder import Findings
from lengthen.reporting.tabulation import bucket_table, positions_table, survey_table, table, trainings_table
from lengthen.results import CheckResult


def page(findings: Findings, figures: Sequence[Figure], chart_script: str) -> str:
    """The whole document. chart_script: what defines vegaEmbed; it stands in the page once."""
    sections = _sections(findings, {f.name: f for f in figures})
    behaviour = _asset("page.js")
    scripts = [chart_script, behaviour] if figures else []
    title = _title(findings)
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} · lengthen"),
        tag("style", Markup(_theme_css(len(series_of(findings))) + _asset("page.css"))),
    ]
    body = [
        tag("a", "Skip to the results", href="#results", class_="skip"),
        tag(
            "header",
            tag("p", "lengthen", class_="product"),
            tag("h1", title),
            tag("p", _facts(findings), class_="facts"),
        ),
        tag("nav", *(tag("a", name, href=f"#{key}") for key, name, _ in sections), aria_label="Sections"),
        tag("main", *(_section(*section) for section in sections), id="results"),
        tag("footer", tag("p", _footer(findings))),
        json_script("figures", [_figure_data(f) for f in figures]) if figures else "",
        *(inline_script(source) for source in scripts),
    ]
    return "<!doctype html>\n" + tag("html", tag("head", *head), "\n", tag("body", *body), lang="en") + "\n"


def _sections(findings: Findings, figures: dict[str, Figure]) -> list[tuple[str, str, Markup]]:
    """What the page is made of, as (id, heading, content); a part that has no content is not there."""
    run = findings.demonstration
    arms = table_element(table(run)) if run else Markup("")
    parts = [
        ("verdict", "Verdict", _verdicts(findings)),
        ("arms", "Arms", arms),
        ("length", "How far", _length(findings, figures)),
        (
            "state",
            "State",
            join(*(_figure(figures[n]) for n in ("state-spread", "state-spread-layers") if n in figures)),
        ),
        ("training", "Training", _training(findings, figures)),
        ("parity", "Parity", _parity(list(findings.checks.values()))),
        ("configuration", "Configuration", configuration_section(findings)),
    ]
    return [part for part in parts if part[2]]


def _section(key: str, heading: str, content: Markup) -> Markup:
    return tag("section", tag("h2", heading, id=f"{key}-heading"), content, id=key, aria_labelledby=f"{key}-heading")


def _title(findings: Findings) -> str:
    if findings.demonstration:
        return "A model that breaks past its training context, repaired"
    named = {d.model for d in findings.diagnoses.values()} | {c.model for c in findings.checks.values()}
    if len(named) == 1:
        return named.pop()
    if findings.diagnoses:
        return "How far these models generalise"
    if findings.trainings:
        return " and ".join(f"Training: {r.intervention}" for r in findings.trainings.values())
    return "Is the state carried?" if findings.checks else "Results"


def _facts(findings: Findings) -> str:
    """The few numbers everything else depends on, in a line."""
    contexts = {d.train_context for d in findings.diagnoses.values()}
    contexts |= {r.train_context for r in findings.trainings.values()}
    families = {d.family for d in findings.diagnoses.values()} | {c.family for c in findings.checks.values()}
    sequences = {d.n for d in findings.diagnoses.values()}
    facts = []
    if families:
        facts.append(", ".join(sorted(families)) if len(families) <= 3 else f"{len(families)} families")
    if contexts:
        facts.append("training context " + _listed(contexts))
    if findings.diagnoses:
        facts.append(f"judged up to {max(d.max_length for d in findings.diagnoses.values()):,} positions")
        facts.append(_listed(sequences) + " sequences")
    if len(findings.checks) > 1:
        facts.append(f"{len(findings.checks)} models checked")
    if findings.demonstration:
        facts.append(f"seed {findings.demonstration.seed}")
        facts.append(f"{findings.demonstration.seconds:,.0f} s")
    return " · ".join(facts)


def _verdicts(findings: Findings) -> Markup:
    """What was found, a sentence for each, and what a demonstration is not."""
    names = series_of(findings)
    items = [
        _verdict({True: "fails", False: "holds", None: "open"}[d.fails], name, d.verdict, names.index(name))
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


def _verdict(status: str, name: str, sentence: str, index: int | None = None) -> Markup:
    sign, word = _STATUS[status]
    mark = tag("span", sign, class_="sign", role="img", aria_label=word)
    label = tag("b", swatch(Entry(name, index, False)) if index is not None else "", name)
    return tag("li", mark, tag("div", label, tag("span", sentence)), class_=status)


def _length(findings: Findings, figures: dict[str, Figure]) -> Markup:
    if not findings.diagnoses:
        return Markup("")
    ranges = [
        details(f"Every range of positions: {n}", table_element(bucket_table(d))) for n, d in findings.diagnoses.items()
    ]
    return join(
        _figure(figures["perplexity"]) if "perplexity" in figures else "",
        table_element(positions_table(findings.diagnoses)),
        *ranges,
    )


def _training(findings: Findings, figures: dict[str, Figure]) -> Markup:
    if not findings.trainings:
        return Markup("")
    return join(
        _figure(figures["training-loss"]) if "training-loss" in figures else "",
        table_element(trainings_table(findings.trainings)),
    )


def _parity(checks: list[CheckResult]) -> Markup:
    if len(checks) == 1:
        return table_element(table(checks[0]))
    survey = [table_element(survey_table(checks))] if checks else []
    return join(*survey, *(details(table(c).title, table_element(table(c), titled=False)) for c in checks))


def _figure(figure: Figure) -> Markup:
    """A chart's frame: the page's script draws into it."""
    switch = tag("button", "Linear scale", type="button", aria_pressed="false", class_="scale", hidden=True)
    links = [tag("a", kind.upper(), href=f"figures/{figure.name}.{kind}") for kind in ("png", "svg")]
    return tag(
        "figure",
        tag("div", tag("h3", figure.title), switch if figure.logarithmic else "", class_="bar"),
        legend(figure),
        tag(
            "div",
            tag("noscript", "The chart needs JavaScript; the tables below hold its numbers."),
            class_="chart",
            role="group",
            aria_label=figure.title,
        ),
        tag("figcaption", figure.caption, " ", tag("span", "As a file: ", links[0], ", ", links[1], class_="files")),
        id=f"figure-{figure.name}",
    )


def _figure_data(figure: Figure) -> dict[str, Any]:
    themes = {theme.name: chart_config(theme, figure.series, legend=False) for theme in (LIGHT, DARK)}
    return {"name": figure.name, "spec": figure.spec, "themes": themes}


def _footer(findings: Findings) -> str:
    others = "".join(f" {name} holds {kind}, which has no place here." for name, kind in findings.others)
    return f"Made from the files in results/, which hold every number shown.{others}"


def _listed(values: Iterable[int]) -> str:
    return ", ".join(f"{v:,}" for v in sorted(values))


def _policy(scripts: Sequence[str]) -> str:
    """Nothing is loaded from anywhere, and no script runs but the page's own (Vega compiles its expressions)."""
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{h}'" for h in hashes) + " 'unsafe-eval'" if hashes else "'none'"
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def _theme_css(series: int) -> str:
    """The themes' colours as custom properties, and a class per series."""

    def properties(theme: Theme) -> str:
        named = {"ground": theme.ground, "ink": theme.ink, "muted": theme.muted, "rule": theme.rule}
        colours = {f"series-{i}": theme.colour(i) for i in range(series)}
        return "".join(f"--{name}:{value};" for name, value in (named | colours).items())

    classes = "".join(f".s{i}{{color:var(--series-{i})}}" for i in range(series))
    return f":root{{{properties(LIGHT)}}}@media(prefers-color-scheme:dark){{:root{{{properties(DARK)}}}}}{classes}\n"


def _asset(name: str) -> str:
    return (files("lengthen.reporting") / name).read_text(encoding="utf-8")
