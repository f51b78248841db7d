"""The page is one whole file: well-formed, loading nothing, showing every string as text."""

import dataclasses
import json
import re

import pytest

from lengthen.reporting.figures import figures
from lengthen.reporting.page import page as page_of
from lengthen.reporting.writing import chart_script
from tests.reporting.example_results import (
    HOSTILE,
    RECOMMENDED,
    check,
    comparison,
    demonstration,
    diagnosis,
    evaluation,
    findings,
    rival_study,
    rivals,
    study,
    task_study,
    training,
)
from tests.reporting.outline import Outline

LOADING = {"src", "srcset", "data", "poster", "background", "action", "formaction"}


def written(found):
    return page_of(found, figures(found), chart_script())


@pytest.fixture(scope="module")
def page():
    found = findings(demonstration(), diagnosis(HOSTILE))
    found.command = f"lengthen demo --out {HOSTILE}"
    return written(found)


def test_page_is_well_formed(page):
    outline = Outline(page)
    assert page.startswith("<!doctype html>") and outline.tags[0] == "html"
    assert len(set(outline.ids)) == len(outline.ids)
    targets = [v[1:] for v in outline.values("href") if v.startswith("#")] + outline.values("aria-labelledby")
    assert targets and set(targets) <= set(outline.ids)
    assert outline.tags.count("h1") == 1


def test_page_loads_nothing(page):
    outline = Outline(page)
    assert not [a for a in outline.attributes if a[1] in LOADING]
    assert all(v.startswith(("#", "figures/")) for v in outline.values("href"))
    assert "link" not in outline.tags and "iframe" not in outline.tags and "img" not in outline.tags
    style = "".join(outline.texts["style"])
    assert "url(" not in style and "@import" not in style
    policy = next(v for v in outline.values("content") if "default-src" in v)
    assert "default-src 'none'" in policy and "unsafe-inline" not in policy.split("style-src")[0]
    assert not re.search(r"https?://", page.split("<script>")[0]), "outside the chart library no address is named"


def test_the_chart_library_stands_in_the_page_once(page):
    assert page.count("vegaEmbed=") == 1 and page.count("<script>") == 2
    assert len(page) < 1_600_000


def test_hostile_strings_are_shown_as_text(page):
    outline = Outline(page)
    # The data, the library and the page's own behaviour: no script came in with a name.
    assert outline.tags.count("script") == 3 and page.count("alert(1)") == page.count("alert(1)&lt;/script") + len(
        re.findall(r"alert\(1\)\\u003c", page)
    )
    assert any(HOSTILE in text for text in outline.texts["b"]), "the name is there, as text"
    assert HOSTILE in outline.texts["code"][0] and HOSTILE in outline.values("value")
    data = json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', page).group(1))
    named = {figure["name"]: figure for figure in data}
    assert HOSTILE in {row["series"] for row in named["loss-by-position"]["spec"]["data"]["values"]}
    assert HOSTILE in named["state-drift"]["rows"]["fields"]["run"]["values"]


def test_a_demonstration_says_what_it_is_and_judges_every_arm(page):
    text = Outline(page).texts
    assert demonstration().caveat in text["p"]
    assert all(d.verdict in text["span"] for d in demonstration().diagnoses.values())
    assert text["h2"] == [
        "Verdict",
        "Certificate",
        "Arms",
        "How far",
        "State",
        "Training",
        "Parity",
        "Configuration",
    ]
    assert "".join(text["p"]).count(RECOMMENDED.advice) == 2, (
        "of the model before, and of the one beside the demonstration"
    )
    assert RECOMMENDED.finding in "".join(text["span"])
    assert all(c.verdict in text["span"] for c in demonstration().certificates)


@pytest.mark.parametrize(
    ("result", "title", "headings"),
    [
        (diagnosis("my-model"), "my-model", ["Verdict", "How far", "State", "Configuration"]),
        (
            comparison(),
            "How far these models generalise",
            ["Verdict", "Certificate", "How far", "State", "Configuration"],
        ),
        (training(), "Training: state-passing", ["Training", "Configuration"]),
        (evaluation("my-model"), "my-model", ["Tasks", "Configuration"]),
        (check("my-model", passed=False), "my-model", ["Verdict", "Parity"]),
        (rivals("my-model"), "my-model", ["Rivals"]),
        (rival_study(), "Study: rivals", ["Rivals"]),
        (task_study(), "Study: learn", ["Studies"]),
    ],
    ids=["diagnosis", "comparison", "training", "evaluation", "check", "rivals", "rival study", "task study"],
)
def test_each_kind_alone_gives_a_page(result, title, headings):
    outline, names = Outline(written(findings(result))), [f.name for f in figures(findings(result))]
    assert outline.texts["h1"] == [title] and outline.texts["h2"] == headings
    assert {f"figure-{name}" for name in names} <= set(outline.ids) and ("script" in outline.tags) == bool(names)


def test_the_page_shows_all_studies_of_a_folder():
    page = written(findings(study()))
    assert "<h1>Study: rates</h1>" in page and "1e-3, state passing" in page and 'id="figure-rates-far"' in page
    page = written(findings(study(), dataclasses.replace(study(), name="more")))
    assert "<h1>2 studies</h1>" in page and 'id="figure-more-far"' in page
