"""HTML from values: what is not markup is escaped, and no data ends the element that holds it."""

import json
import math

import pytest

from lengthen.reporting.markup import Markup, escaped, inline_script, join, json_script, tag
from tests.reporting.example_results import HOSTILE
from tests.reporting.outline import VOID, Outline


def test_markup_escapes_unless_told():
    assert tag("b", "<i>", tag("i", "&"), class_='"x"') == '<b class="&quot;x&quot;">&lt;i&gt;<i>&amp;</i></b>'
    for source in ("a</SCRIPT>b", "<!--"):
        with pytest.raises(ValueError, match="script element"):
            inline_script(source)


def test_attributes_are_named_as_html_has_them_and_left_out_where_false():
    assert tag("a", class_="b", aria_label="c", data_x=0) == '<a class="b" aria-label="c" data-x="0"></a>'
    assert tag("button", hidden=True, disabled=False, title=None) == "<button hidden></button>"
    assert all(tag(name) == f"<{name}>" for name in VOID), "which have no end"


def test_any_text_comes_back_as_it_was():
    outline = Outline(tag("p", HOSTILE, title=HOSTILE))
    assert outline.tags == ["p"] and "".join(outline.texts["p"]) == HOSTILE and outline.values("title") == [HOSTILE]
    assert join("<", Markup("<br>"), 3) == "&lt;<br>3" and isinstance(join(), Markup)


def test_data_come_back_as_they_were_and_cannot_end_their_element():
    document = {HOSTILE: [HOSTILE, 1.5, None, "–"]}
    outline = Outline(json_script("data", document))
    assert outline.tags == ["script"] and outline.ids == ["data"]
    (text,) = outline.texts["script"]
    assert json.loads(text) == document and not set("<>&") & set(text)
    with pytest.raises(ValueError, match="Out of range"):
        json_script("data", [math.nan])


def test_a_percent_sign_stays_beside_its_number_but_in_what_is_escaped_by_the_caller():
    assert tag("p", "from 1 % to 2 %") == "<p>from 1\N{NO-BREAK SPACE}% to 2\N{NO-BREAK SPACE}%</p>"
    assert tag("pre", escaped("1 %"), title="2 %") == '<pre title="2 %">1 %</pre>'
