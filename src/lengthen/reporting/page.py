"""The page: one HTML file that shows findings and figures; it computes nothing and escapes all it shows."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files

from lengthen.reporting.charts import Figure
from lengthen.reporting.configuration import configuration_section
from lengthen.reporting.markup import Markup, inline_script, join, json_script, tag
from lengthen.reporting.page_figures import figure_data, figure_element
from lengthen.reporting.page_findings import certificates, verdicts
from lengthen.reporting.page_tables import details, table_element
from lengthen.reporting.palette import DARK, LIGHT, Theme
from lengthen.reporting.points import series_of
from lengthen.reporting.rival_tables import rival_heads_table, rival_study_tables, rivals_table
from lengthen.reporting.run_folder import Findings
from lengthen.reporting.state_tables import drift_table, patching_table, remembrance_table
from lengthen.reporting.study_figures import study_figure_names
from lengthen.reporting.tabulation import Table, bucket_table, positions_table, survey_table, table, trainings_table
from lengthen.reporting.task_tables import evaluation_table, task_study_table
from lengthen.results import CheckResult, Diagnosis


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
        json_script("figures", [figure_data(f) for f in figures]) if figures else "",
        *(inline_script(source) for source in scripts),
    ]
    return "<!doctype html>\n" + tag("html", tag("head", *head), "\n", tag("body", *body), lang="en") + "\n"


def _sections(findings: Findings, figures: dict[str, Figure]) -> list[tuple[str, str, Markup]]:
    """What the page is made of, as (id, heading, content); a part that has no content is not there."""
    run = findings.demonstration
    arms = table_element(table(run)) if run else Markup("")
    parts = [
        ("verdict", "Verdict", verdicts(findings)),
        ("certificate", "Certificate", certificates(findings, figures)),
        ("arms", "Arms", arms),
        ("length", "How far", _length(findings, figures)),
        ("state", "State", _state(findings, figures)),
        ("tasks", "Tasks", _tasks(findings, figures)),
        ("rivals", "Rivals", _rivals(findings, figures)),
        ("training", "Training", _training(findings, figures)),
        ("studies", "Studies", _studies(findings, figures)),
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
    named |= {e.model for e in findings.evaluations.values()} | {r.model for r in findings.rivals.values()}
    if len(named) == 1:
        return named.pop()
    if findings.diagnoses:
        return "How far these models generalise"
    if findings.studies or findings.task_studies or findings.rival_studies:
        studies = [*findings.studies, *findings.task_studies, *findings.rival_studies]
        return f"Study: {studies[0]}" if len(studies) == 1 else f"{len(studies)} studies"
    if findings.trainings:
        return " and ".join(f"Training: {r.intervention}" for r in findings.trainings.values())
    return "Is the state carried?" if findings.checks else "Results"


def _facts(findings: Findings) -> str:
    """The few numbers everything else depends on, in a line."""
    contexts = {d.train_context for d in findings.diagnoses.values()}
    contexts |= {r.train_context for r in findings.trainings.values()}
    families = {d.family for d in findings.diagnoses.values()} | {c.family for c in findings.checks.values()}
    families |= {e.family for e in findings.evaluations.values()}
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


def _length(findings: Findings, figures: dict[str, Figure]) -> Markup:
    if not findings.diagnoses:
        return Markup("")
    return join(
        figure_element(figures.get("loss-by-position")),
        table_element(positions_table(findings.diagnoses)),
        _folded("Every range of positions", bucket_table, findings),
        figure_element(figures.get("remembrance")),
        _folded("What still counts, in numbers", remembrance_table, findings),
    )


def _state(findings: Findings, figures: dict[str, Figure]) -> Markup:
    return join(
        figure_element(figures.get("state-drift")),
        _folded("Heads outside, in numbers", drift_table, findings),
        figure_element(figures.get("state-statistics")),
        figure_element(figures.get("forgetting")),
        figure_element(figures.get("patching")),
        _folded("State patching, in numbers", patching_table, findings),
    )


def _folded(title: str, tabulated: Callable[[Diagnosis], Table | None], findings: Findings) -> Markup:
    """The tables of all diagnoses that have one, folded together."""
    found = [(name, tabulated(d)) for name, d in findings.diagnoses.items()]
    tables = [table_element(dataclasses.replace(t, title=name)) for name, t in found if t is not None]
    return details(title, join(*tables)) if tables else Markup("")


def _tasks(findings: Findings, figures: dict[str, Figure]) -> Markup:
    return join(
        figure_element(figures.get("tasks")),
        figure_element(figures.get("task-depths")),
        *(table_element(evaluation_table(e)) for e in findings.evaluations.values()),
    )


def _rivals(findings: Findings, figures: dict[str, Figure]) -> Markup:
    tables = [t for r in findings.rivals.values() for t in (rivals_table(r), rival_heads_table(r))]
    tables += [t for study in findings.rival_studies.values() for t in rival_study_tables(study)]
    left_out = [tag("p", why, class_="note") for r in findings.rivals.values() for why in r.left_out.values()]
    return join(figure_element(figures.get("rivals")), *map(table_element, tables), *left_out)


def _training(findings: Findings, figures: dict[str, Figure]) -> Markup:
    if not findings.trainings:
        return Markup("")
    return join(
        figure_element(figures.get("training-loss")),
        table_element(trainings_table(findings.trainings)),
    )


def _studies(findings: Findings, figures: dict[str, Figure]) -> Markup:
    return join(
        *(
            join(
                table_element(table(study)),
                *(figure_element(figures.get(figure)) for figure in study_figure_names(study)),
            )
            for study in findings.studies.values()
        ),
        *(table_element(task_study_table(study)) for study in findings.task_studies.values()),
    )


def _parity(checks: list[CheckResult]) -> Markup:
    if len(checks) == 1:
        return table_element(table(checks[0]))
    survey = [table_element(survey_table(checks))] if checks else []
    return join(*survey, *(details(table(c).title, table_element(table(c), titled=False)) for c in checks))


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
