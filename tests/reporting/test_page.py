"""The page is one whole file: well-formed, loading nothing, showing every string as text; figures lie beside it."""

import errno
import json
import os
import re
from html.parser import HTMLParser

import pytest

from lengthen.errors import InputError, RunError
from lengthen.reporting import certificate_markdown, write_report
from lengthen.reporting.markup import inline_script, tag
from tests.reporting.example_results import (
    HOSTILE,
    RECOMMENDED,
    check,
    comparison,
    demonstration,
    diagnosis,
    evaluation,
    training,
)

VOID = {"meta", "input", "br", "hr", "link"}
LOADING = {"src", "srcset", "data", "poster", "background", "action", "formaction"}
FIGURES = [
    "certificate",
    "loss-by-position",
    "remembrance",
    "state-drift",
    "state-statistics",
    "forgetting",
    "patching",
    "training-loss",
]


class Outline(HTMLParser):
    """Checks that elements nest, and collects attributes, text by element and scripts."""

    def __init__(self, page):
        super().__init__()
        self.open, self.attributes, self.ids = [], [], []
        self.texts, self.tags = {}, []
        self.feed(page)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def values(self, name):
        return [value for _, key, value in self.attributes if key == name]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    demonstration().save(folder / "results" / "demonstration.json")
    diagnosis(HOSTILE).save(folder / "results" / "a.json")
    (folder / "run.json").write_text(json.dumps({"arguments": ["demo", "--out", HOSTILE]}))
    return write_report(folder).parent


@pytest.fixture(scope="module")
def page(run):
    return (run / "report.html").read_text(encoding="utf-8")


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
    assert HOSTILE in {row["series"] for row in data[FIGURES.index("loss-by-position")]["spec"]["data"]["values"]}
    assert HOSTILE in data[FIGURES.index("state-drift")]["rows"]["fields"]["run"]["values"]


def test_every_figure_lies_beside_the_page(run, page):
    assert sorted(p.name for p in (run / "figures").iterdir()) == sorted(
        f"{n}.{k}" for n in FIGURES for k in ("png", "svg")
    )
    for name in FIGURES:
        png, svg = (run / "figures" / f"{name}.png").read_bytes(), (run / "figures" / f"{name}.svg").read_text()
        width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
        assert png[1:4] == b"PNG" and width > 1000 and height > 250 and len(png) > 10_000
        assert svg.startswith("<svg") and "<script" not in svg and svg.count("<path") > 10
        assert f'id="figure-{name}"' in page and f'href="figures/{name}.svg"' in page


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
    ],
    ids=["diagnosis", "comparison", "training", "evaluation", "check"],
)
def test_each_kind_alone_gives_a_page(tmp_path, result, title, headings):
    result.save(tmp_path / "results" / "result.json")
    outline = Outline(write_report(tmp_path).read_text(encoding="utf-8"))
    assert outline.texts["h1"] == [title] and outline.texts["h2"] == headings
    assert ("script" in outline.tags) == (not isinstance(result, type(check())))


def test_what_is_not_paired_and_how_a_certificate_stands_in_a_model_card(tmp_path):
    comparison().save(tmp_path / "results" / "comparison.json")
    text = Outline(write_report(tmp_path).read_text(encoding="utf-8")).texts
    assert "No certificate: They were judged on different sequences." in text["span"]
    assert text["pre"] == [certificate_markdown(comparison().certificates[0])]


def test_writing_again_gives_the_same_page(run, page):
    assert write_report(run).read_text(encoding="utf-8") == page


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    diagnosis().save(tmp_path / "results" / "a.json")
    (tmp_path / "figures").write_text("in the way")
    with pytest.raises(InputError, match=r"figures.*cannot be written"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_full_disk_is_a_failed_run_and_the_results_stay(tmp_path, monkeypatch):
    diagnosis().save(tmp_path / "results" / "a.json")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(RunError, match=r"disk is full; make room"):
        write_report(tmp_path)
    assert (tmp_path / "results" / "a.json").exists() and not list((tmp_path / "figures").iterdir())


def test_markup_escapes_unless_told():
    assert tag("b", "<i>", tag("i", "&"), class_='"x"') == '<b class="&quot;x&quot;">&lt;i&gt;<i>&amp;</i></b>'
    for source in ("a</SCRIPT>b", "<!--"):
        with pytest.raises(ValueError, match="script element"):
            inline_script(source)
