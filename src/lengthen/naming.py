"""What is named with settings: NAME or NAME:setting=value,setting=value, as the command line has it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from lengthen.errors import InputError


def name_and_settings(text: str) -> tuple[str, dict[str, Any]]:
    """The name, and the settings as value_of() reads them. Raises InputError for a setting without a value, or given twice."""
    name, _, rest = text.partition(":")
    settings = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"The setting {item!r} of {name} has no value; write {key}=VALUE.")
        if key.strip() in settings:
            raise InputError(f"The setting {key.strip()} of {name} is given twice; keep one.")
        settings[key.strip()] = value_of(value.strip())
    return name.strip(), settings


def require_settings(name: str, settings: Mapping[str, Any], kinds: Mapping[str, str]) -> None:
    """Raises InputError for a setting that is not among `kinds` (setting -> its type, as annotated: str, bool, a number's,
    with None or without), and for a value of another type, or a number that is not finite."""
    for key, value in settings.items():
        if key not in kinds:
            raise InputError(f"{name} has no setting {key!r}; {advice(key, list(kinds))}.")
        kind = kinds[key]
        of = {part.strip() for part in kind.split("|")}
        if value is None and "None" in of:
            continue
        if isinstance(value, bool):
            suits = "bool" in of
        elif isinstance(value, int | float):
            suits = math.isfinite(value) and bool(of & {"int", "float"})
        else:
            suits = isinstance(value, str) and "str" in of
        if not suits:
            told = str(value).lower() if isinstance(value, bool) else repr(value)
            wanted = "true or false" if "bool" in of else "a word" if "str" in of else "a number"
            raise InputError(f"The setting {key} of {name} is {told}; give {wanted}.")


def advice(given: str, known: list[str]) -> str:
    """What to do about a name that is unknown: take the nearest one, or one of all."""
    if not known:
        return "leave it out"
    near = difflib.get_close_matches(given, known, n=1)
    return f"perhaps {near[0]!r} was meant" if near else f"choose one of {', '.join(known)}"


def value_of(text: str) -> bool | int | float | str:
    """true or false, a whole number, a number, or else the word itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
