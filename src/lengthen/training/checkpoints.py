"""Checkpoint folders on disk: whole or not there, and trusted only where they are what was written and fit the run.

A checkpoint is written under a temporary name, renamed to checkpoint-STEP, and marked last: the marker holds the run's
identity and the digest of every file. A folder without a marker was interrupted, and counts as not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lengthen.errors import InputError, RunError, disk_is_full, one_line
from lengthen.results import write_text

MARKER = "complete.json"
UNFINISHED = ".checkpoint.unfinished"
PREFIX = "checkpoint-"


def checkpoints_in(folder: Path) -> list[Path]:
    """The complete checkpoints of a run folder, in the order of their steps."""
    found = [path for path in folder.glob(f"{PREFIX}*") if (path / MARKER).is_file() and step_of(path) is not None]
    return sorted(found, key=lambda path: step_of(path) or 0)


def step_of(checkpoint: Path) -> int | None:
    """The optimiser steps behind a checkpoint, by its name; None where the name is no checkpoint's."""
    number = checkpoint.name.removeprefix(PREFIX)
    return int(number) if number.isdecimal() else None


def begin(folder: Path) -> Path:
    """An empty place to write a checkpoint's files to; what an interrupted run left there goes."""
    clear(folder)
    place = folder / UNFINISHED
    place.mkdir(parents=True)
    return place


def clear(folder: Path) -> None:
    """Removes what interrupted runs left half-written: temporary places and files, and folders without a marker."""
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    for path in folder.rglob(".*.tmp"):
        path.unlink(missing_ok=True)
    for path in folder.glob(f"{PREFIX}*"):
        if step_of(path) is not None and not (path / MARKER).is_file():
            shutil.rmtree(path, ignore_errors=True)


def seal(files: Path, checkpoint: Path, identity: dict[str, Any]) -> None:
    """Makes the written files the checkpoint: on the disk, renamed, marked."""
    marker = {"identity": identity, "files": {name: _digest(files / name, sync=True) for name in _names(files)}}
    remove(checkpoint)
    files.rename(checkpoint)
    write_text(checkpoint / MARKER, json.dumps(marker, indent=1) + "\n")


def remove(checkpoint: Path) -> None:
    """Deletes a checkpoint, the marker first, so that an interruption leaves nothing that looks whole."""
    (checkpoint / MARKER).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=True)


def keep_last(folder: Path, count: int) -> None:
    """Deletes all complete checkpoints of a run folder but the last `count`."""
    found = checkpoints_in(folder)
    for checkpoint in found[: max(0, len(found) - count)]:
        remove(checkpoint)


def require_usable(checkpoint: Path, identity: dict[str, Any]) -> None:
    """Raises InputError unless a checkpoint is complete, undamaged and of the run with this identity."""
    marker = _marker(checkpoint)
    damage = "it was not written to the end" if marker is None else _damage(checkpoint, marker)
    if damage is not None:
        raise InputError(f"The checkpoint {checkpoint} is damaged ({damage}); {_way_out(checkpoint)}.")
    assert marker is not None
    for name in sorted({*identity, *marker["identity"]}):
        then, now = marker["identity"].get(name), identity.get(name)
        if then != now:
            raise InputError(
                f"The checkpoint {checkpoint} belongs to another run: its {name} is {then!r}, this run's {now!r}; "
                "resume with the same model, data and options, or start afresh in another folder."
            )


def latest(folder: Path, identity: dict[str, Any]) -> Path | None:
    """The last complete checkpoint of a run folder, or None; InputError where it is damaged or of another run."""
    found = checkpoints_in(folder)
    if not found:
        return None
    require_usable(found[-1], identity)
    return found[-1]


@contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """Turns what PyTorch, safetensors and the system raise over a full or broken disk into one RunError."""
    from safetensors import SafetensorError

    try:
        yield
    except (RunError, OSError, SafetensorError, RuntimeError) as error:
        full = disk_is_full(error)
        if not full and isinstance(error, RuntimeError):
            raise
        reason = "the disk is full" if full else getattr(error, "strerror", None) or one_line(error)
        raise RunError(f"{what} cannot be written to {folder} ({reason}); {_kept(folder)}.") from error


def _kept(folder: Path) -> str:
    good = checkpoints_in(folder)
    if good:
        return f"make room and go on from {good[-1].name}, the last good checkpoint, with --resume"
    return "make room and start again"


def _way_out(checkpoint: Path) -> str:
    """What to do about a damaged checkpoint, naming the last good one."""
    others = [path for path in checkpoints_in(checkpoint.parent) if path != checkpoint]
    for other in reversed(others):
        marker = _marker(other)
        if marker is not None and _damage(other, marker) is None:
            return f"delete it to resume from {other}, the last good one"
    return "there is no good one beside it, so start afresh in another folder"


def _marker(checkpoint: Path) -> dict[str, Any] | None:
    """What the marker says, or None where it is missing or no marker."""
    try:
        found = json.loads((checkpoint / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(found, dict) and all(isinstance(found.get(name), dict) for name in ("identity", "files"))
    return found if whole else None


def _damage(checkpoint: Path, marker: dict[str, Any]) -> str | None:
    """What differs between a checkpoint's files and its marker."""
    for name, digest in marker["files"].items():
        try:
            if _digest(checkpoint / name) != digest:
                return f"{name} is not what was written"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror or error}"
    return None


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _digest(path: Path, *, sync: bool = False) -> str:
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
