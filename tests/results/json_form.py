"""The JSON form that every kind of result must keep, from values that its own annotations ask for."""

import dataclasses
import inspect
import json
import math
import random
import types
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

from lengthen.results import Result


def kinds_in(module: ModuleType) -> list[type[Result]]:
    """The kinds of results that a module declares."""
    found = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__]
    assert found and all(issubclass(kind, Result) for kind in found)
    return found


def of(kind: Any, draw: random.Random, missing: bool) -> Any:
    """A value of a type, as annotated; of optional ones None where `missing`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{field.name: of(hints[field.name], draw, missing) for field in dataclasses.fields(kind)})
    if origin is list:
        return [of(inner[0], draw, missing) for _ in range(draw.randint(1, 3))]
    if origin is dict:
        return {f"name {i}": of(inner[1], draw, missing) for i in range(2)}
    if origin in (typing.Union, types.UnionType):
        return None if missing else of(inner[0], draw, missing)
    plain = {
        bool: True,
        int: draw.randrange(1 << 40),
        float: draw.uniform(-9, 9),
        str: f"“é\n{draw.random()}",
        Any: [1, "b"],
    }
    return plain[kind]


def keeps_its_json_form(kind: type[Result], folder: Path) -> None:
    """What is saved is loaded, every field of it, under its own name; a number that is not finite comes back as NaN."""
    names = [field.name for field in dataclasses.fields(kind)]
    for seed, missing in enumerate([False, True]):
        made = of(kind, random.Random(seed), missing)
        path = made.save(folder / "it.json")
        assert list(json.loads(path.read_text(encoding="utf-8"))) == ["schema_version", "kind", *names]
        assert kind.load(path) == made
    for name, annotation in typing.get_type_hints(kind).items():
        if annotation is float:
            read = kind.load(dataclasses.replace(made, **{name: math.inf}).save(folder / "it.json"))
            assert math.isnan(getattr(read, name)), name
            assert dataclasses.replace(read, **{name: getattr(made, name)}) == made
