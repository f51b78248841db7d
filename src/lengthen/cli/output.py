"""What commands print: results, progress."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthen.cli.options import Common

if TYPE_CHECKING:
    from lengthen.results import Result


def first_process() -> bool:
    """Whether this process speaks: of several under torchrun or accelerate launch only the first does."""
    import os

    return os.environ.get("RANK", "0") == "0"


def print_json(document: dict[str, Any]) -> None:
    """Prints a document as JSON and nothing else."""
    import json

    if first_process():
        print(json.dumps(document, indent=1, allow_nan=False))


def show(result: Result, common: Common, out: Path | None) -> None:
    """Prints a result as JSON or as tables."""
    if common.json:
        print_json(result.to_json())
        return
    from lengthen.reporting import terminal

    if not first_process():
        return
    terminal.show(result)
    if out is not None:
        print(f"Report: {out / 'report.html'}")


QUIET_SECONDS = 30.0
"""Between two lines of a log: no more of them than a reader wants, no less than tell that a run is alive."""


class Progress:
    """A bar per stage with the time left, on standard error; where that is no terminal, a line now and then."""

    def __init__(self, common: Common) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, Any] = {}
        self._told = time.monotonic()

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if not self._bars.disable:  # rich before 14 ends even a disabled bar with an empty line
            self._bars.stop()

    def stage(self, name: str, done: int, todo: int) -> None:
        if self._bars.disable:
            self._log(name, done, todo)
            return
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=todo)
        self._bars.update(self._tasks[name], completed=done, total=todo)

    def _log(self, name: str, done: int, todo: int) -> None:
        if first_process() and time.monotonic() - self._told >= QUIET_SECONDS:
            self._told = time.monotonic()
            print(f"lengthen: {name}: {done:,} of {todo:,}", file=sys.stderr, flush=True)

    def single(self, name: str) -> Any:
        return lambda done, todo: self.stage(name, done, todo)
