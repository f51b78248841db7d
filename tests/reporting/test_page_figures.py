"""A figure on the page: a frame with its files, the switches it needs, and data for both themes."""

import dataclasses
import json

import pytest

from lengthen.reporting.charts import Choice, Entry, Figure
from lengthen.reporting.page_figures import figure_data, figure_element
from lengthen.reporting.palette import DARK, LIGHT
from lengthen.reporting.state_figures import drift_figure
from tests.reporting.example_results import HOSTILE, diagnosis, findings
from tests.reporting.outline import Outline

PLAIN = Figure("plain", HOSTILE, "A caption.", {"data": {"values": [{"a": 1}]}, "mark": "point"}, 7, [], 1)
CHOICES = [Choice("run", "Run", [("a", "a"), (HOSTILE, "b & c")]), Choice("layer", "Layer", [("all", "all layers")])]


def test_a_frame_tells_title_caption_and_files():
    outline = Outline(figure_element(PLAIN))
    assert outline.ids == ["figure-plain"] and "".join(outline.texts["h3"]) == HOSTILE
    assert outline.values("href") == ["figures/plain.png", "figures/plain.svg"]
    assert outline.values("aria-label") == [HOSTILE] and "A caption. " in outline.texts["figcaption"]
    assert outline.texts["noscript"] and figure_element(None) == ""


def test_a_figure_has_only_the_switches_that_do_something():
    assert not {"button", "fieldset", "select"} & set(Outline(figure_element(PLAIN)).tags)
    entries = [Entry("a", 0, False), Entry("b", 1, False)]
    full = dataclasses.replace(PLAIN, logarithmic=True, entries=entries, choices=CHOICES)
    outline = Outline(figure_element(full))
    assert outline.tags.count("button") == outline.tags.count("fieldset") == 1
    assert outline.values("data-choice") == ["run"], "of one layer there is nothing to choose"
    assert outline.values("value", "option") == ["a", HOSTILE] and outline.texts["option"] == ["a", "b & c"]


def test_switches_are_hidden_until_a_script_makes_them_work():
    outline = Outline(figure_element(dataclasses.replace(PLAIN, logarithmic=True, choices=CHOICES)))
    hidden = [tag for tag, name, _ in outline.attributes if name == "hidden"]
    assert hidden == ["button", "div"]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda t: t.name)
def test_both_themes_have_a_colour_for_every_series(theme):
    config = figure_data(PLAIN)["themes"][theme.name]
    assert config["range"]["category"] == [theme.colour(i) for i in range(7)] and len(config["range"]["symbol"]) == 7
    assert config["background"] is None and config["legend"]["disable"], "the page has a ground and a legend of its own"


def test_a_figure_without_choices_is_its_definition():
    assert figure_data(PLAIN)["spec"] == PLAIN.spec and "rows" not in figure_data(PLAIN)


def test_all_that_can_be_chosen_is_in_the_page_once():
    figure = drift_figure(findings(diagnosis("one"), diagnosis("two", 0)))
    data = json.loads(json.dumps(figure_data(figure)))
    assert data["spec"]["data"] == {"values": []} and data["choices"] == {"run": "one", "layer": "all"}
    fields, count = data["rows"]["fields"], data["rows"]["count"]
    cells = {k: c if isinstance(c, list) else [c["values"][i] for i in c["at"]] for k, c in fields.items()}
    assert [{k: cells[k][i] for k in cells} for i in range(count)] == figure.rows
