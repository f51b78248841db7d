"""Tables on the page: every cell as text, words and numbers told apart, a box that the keyboard reaches."""

from lengthen.reporting.markup import Markup
from lengthen.reporting.page_tables import details, table_element
from lengthen.reporting.tabulation import Table, table
from tests.reporting.example_results import HOSTILE, check
from tests.reporting.outline import Outline

SHOWN = Table(
    "A title", ["name", "n", HOSTILE], [["a", "1", HOSTILE], ["b", "2", "passed by"]], frozenset({0, 2}), "A note"
)


def test_a_table_comes_back_cell_by_cell():
    outline = Outline(table_element(SHOWN))
    assert outline.rows == [SHOWN.columns, *SHOWN.rows]
    assert outline.texts["h3"] == ["A title"] and outline.texts["p"] == ["A note"]
    assert outline.values("scope") == ["col"] * 3 + ["row"] * 2, "the first column names its row"
    assert outline.values("class", "td") == ["number", "text"] * 2
    assert outline.values("aria-label") == ["A title"] and outline.values("tabindex") == ["0"]


def test_a_title_told_elsewhere_and_a_note_there_is_not_take_no_room():
    outline = Outline(table_element(Table("A title", ["name"], [["a"]]), titled=False))
    assert "h3" not in outline.tags and "p" not in outline.tags and outline.values("aria-label") == ["A title"]


def test_what_passed_and_what_failed_can_be_styled():
    outline = Outline(table_element(table(check(passed=False))))
    assert [c for c in outline.values("class", "td") if c not in ("text", "number")] == [
        "text failed",
        "text passed",
        "text passed",
    ]


def test_what_is_folded_is_named_as_text():
    outline = Outline(details(HOSTILE, Markup("<p>in it</p>")))
    assert outline.tags == ["details", "summary", "p"] and "".join(outline.texts["summary"]) == HOSTILE
    assert outline.values("open") == []
