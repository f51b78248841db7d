"""Tables as HTML."""

from __future__ import annotations

from lengthen.reporting.markup import Markup, join, tag
from lengthen.reporting.tabulation import Table


def table_element(table: Table, *, titled: bool = True) -> Markup:
    """A table that scrolls inside its own box where the page is narrow; the box can be reached by keyboard."""
    kinds = ["text" if i in table.texts else "number" for i in range(len(table.columns))]
    header = tag("tr", *(tag("th", name, scope="col", class_=kind) for name, kind in zip(table.columns, kinds)))
    rows = [
        tag(
            "tr",
            tag("th", row[0], scope="row", class_=kinds[0]),
            *(tag("td", cell, class_=_classes(cell, kind)) for cell, kind in zip(row[1:], kinds[1:])),
        )
        for row in table.rows
    ]
    box = tag(
        "div",
        tag("table", tag("thead", header), tag("tbody", *rows)),
        class_="scroll",
        role="region",
        aria_label=table.title,
        tabindex=0,
    )
    return join(
        tag("h3", table.title) if titled else "", box, tag("p", table.note, class_="note") if table.note else ""
    )


def details(summary: str, content: Markup) -> Markup:
    """Content that is folded until asked for."""
    return tag("details", tag("summary", summary), content)


def _classes(cell: str, kind: str) -> str:
    return f"{kind} {cell.lower()}" if cell in {"passed", "FAILED"} else kind
