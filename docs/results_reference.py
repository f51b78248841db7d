"""The fields of every result, as reference/results.md shows them below its last hand-written line.

`python docs/results_reference.py` writes them again after a change of lengthen.results.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from pathlib import Path
from typing import Any

from lengthen import results

PAGE = Path(__file__).parent / "reference" / "results.md"
BEGIN = "<!-- written by docs/results_reference.py from here on -->\n"

_JSON = {str: "string", int: "integer", float: "number", bool: "boolean", Any: "any value"}


def kinds() -> list[type[results.Result]]:
    """Every result: the modules of lengthen.results by name, each in the order in which it defines them."""
    every = [kind for _, kind in inspect.getmembers(results, inspect.isclass)]
    own = [kind for kind in every if issubclass(kind, results.Result) and kind is not results.Result]
    return sorted(own, key=lambda kind: (kind.__module__, inspect.getsourcelines(kind)[1]))


def section(kind: type[results.Result]) -> str:
    """A result's heading, docstring and fields."""
    hints = typing.get_type_hints(kind)
    rows = [f"| `{field.name}` | {json_type(hints[field.name])} |" for field in dataclasses.fields(kind)]
    return "\n".join(
        [f"## {kind.__name__}", "", inspect.getdoc(kind) or "", "", "| field | JSON |", "| --- | --- |", *rows]
    )


def json_type(hint: Any) -> str:
    """What a field of this annotation is in JSON, in words; results linked to their sections."""
    arguments = typing.get_args(hint)
    if hint in _JSON:
        return _JSON[hint]
    if dataclasses.is_dataclass(hint):
        name = typing.cast(type, hint).__name__
        return f"[{name}](#{name.lower()})"
    match typing.get_origin(hint):
        case types.UnionType:
            return " or ".join("null" if kind is types.NoneType else json_type(kind) for kind in arguments)
        case origin if origin is list:
            return f"array of {json_type(arguments[0])}"
        case origin if origin is dict:
            return f"object: any name to {json_type(arguments[1])}"
    raise TypeError(f"{hint} has no form in JSON here; give the field another type, or json_type a case for it.")


def page() -> str:
    """The page as it should stand: its hand-written part as it is, then every result."""
    written, found, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    if not found:
        raise ValueError(f"{PAGE} has no line {BEGIN.strip()!r}, below which the results go; put it there.")
    return written + BEGIN + "\n" + "\n\n".join(section(kind) for kind in kinds()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
