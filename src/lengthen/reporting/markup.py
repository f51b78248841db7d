"""HTML from Python values: whatever is not already markup is escaped."""

from __future__ import annotations

import html
import json
from typing import Any

VOID = {"meta", "input", "br", "hr", "link"}


class Markup(str):
    """A string that is HTML."""

    __slots__ = ()


def escaped(content: Any) -> Markup:
    """The content as HTML; only Markup is taken as it is."""
    return content if isinstance(content, Markup) else Markup(html.escape(str(content), quote=True))


def join(*contents: Any) -> Markup:
    """Contents one after the other; no line breaks between a number and its percent sign."""
    return Markup(
        "".join(c if isinstance(c, Markup) else escaped(c).replace(" %", "\N{NO-BREAK SPACE}%") for c in contents)
    )


def tag(name: str, /, *contents: Any, **attributes: Any) -> Markup:
    """An element. Attributes: a trailing underscore is dropped, others become hyphens; None and False leave one out."""
    parts = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(key)
        elif value is not None and value is not False:
            parts.append(f'{key}="{escaped(value)}"')
    opening = f"<{' '.join(parts)}>"
    return Markup(opening if name in VOID else f"{opening}{join(*contents)}</{name}>")


def json_script(name: str, document: Any) -> Markup:
    """Data for the page's script; nothing in it can end the element or start another."""
    text = json.dumps(document, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    safe = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return Markup(f'<script type="application/json" id="{escaped(name)}">{safe}</script>')


def inline_script(source: str) -> Markup:
    """A script in the page. Raises ValueError where its text would end the element."""
    if "</script" in source.lower() or "<!--" in source:
        raise ValueError("The script holds a sequence that ends an HTML script element.")
    return Markup(f"<script>{source}</script>")
