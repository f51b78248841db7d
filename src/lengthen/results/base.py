"""The base of every result: a dataclass with a JSON form, written whole or not at all, and what its numbers depend on."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from lengthen.errors import InputError, RunError, disk_is_full

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Result:
    """The base of every result: to_json(), save(path) and load(path)."""

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers; a number that is not finite becomes null (JSON has none)."""
        return _plain(self)

    def save(self, path: str | Path) -> Path:
        """Writes the result as JSON (with "schema_version" and "kind"): whole or not at all."""
        document = {"schema_version": SCHEMA_VERSION, "kind": type(self).__name__, **self.to_json()}
        return write_text(Path(path), json.dumps(document, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads what save() wrote; another kind, schema or a damaged file is an InputError."""
        try:
            document = dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, TypeError, ValueError) as error:
            raise InputError(
                f"{path} is not a readable result file ({error}); run the command that writes it again."
            ) from None
        kind, version = document.pop("kind", None), document.pop("schema_version", None)
        if kind != cls.__name__ or version != SCHEMA_VERSION:
            raise InputError(
                f"{path} holds {kind} (schema {version}), but {cls.__name__} (schema {SCHEMA_VERSION}) was expected; "
                "run the command that writes it again."
            )
        return _build(cls, document)


def versions() -> dict[str, str]:
    """The versions a number depends on."""
    import platform
    from importlib.metadata import version

    names = ["lengthen", "torch", "transformers", "accelerate", "numpy"]
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except Exception:
            found[name] = "not installed"
    return found


def write_text(path: Path, text: str) -> Path:
    """Writes a text file whole or not at all."""
    return write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> Path:
    """Writes a file whole or not at all: to a temporary name beside it, then renamed. Raises RunError where the disk is full,
    InputError where the place cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if disk_is_full(error):
            raise RunError(f"{path} cannot be written: the disk is full; make room.") from None
        raise InputError(f"{path} cannot be written ({error.strerror or error}); choose another --out.") from None
    return path


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def _build(kind: Any, value: Any) -> Any:
    """The inverse of _plain, by the dataclasses' own annotations."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _build(hints[name], item) for name, item in value.items()})
    if origin is list:
        return [_build(typing.get_args(kind)[0], item) for item in value]
    if origin is dict:
        return {key: _build(typing.get_args(kind)[1], item) for key, item in value.items()}
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _build(next(k for k in typing.get_args(kind) if k is not type(None)), value)
    if kind is float and value is None:
        return math.nan
    return value
