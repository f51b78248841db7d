"""What all commands share: their common options, the run folder, progress, and how an error is told."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import CycloptsError, Group, Parameter

from lengthen.errors import InputError

if TYPE_CHECKING:
    from lengthen.results import Result
    from lengthen.training_free import FittedMethod


@Parameter(name="*", group=Group("Options of every command", sort_key=1))
@dataclass(frozen=True)
class Common:
    """What every command takes.

    Args:
        out: The run folder to write: run.json, results/, figures/, report.html, and model/ where one is trained (demo,
            post-train, pretrain, rivals and study write one anyway, lengthen-COMMAND unless said).
        overwrite: Replace the run that lies in --out.
        json: Print the result as JSON and nothing else on standard output.
        seed: The seed of everything random.
        device: Where to run, such as cpu or cuda:0 (the first GPU where there is one).
        dtype: What the weights are loaded as: float32, bfloat16, float16 or float64 (as saved unless said).
        threads: CPU threads (PyTorch's choice unless said).
        config: A YAML file with any of the command's options; `training:` in it holds transformers.TrainingArguments.
        debug: Show an error's traceback.
    """

    out: Path | None = None
    overwrite: bool = False
    json: bool = False
    seed: int = 0
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    config: Path | None = None
    debug: bool = False


DEFAULTS = Common()
DIAGNOSIS_CHECKPOINT = "diagnosis-checkpoint"
"""The folder in a run folder where an interrupted diagnosis goes on."""
EVALUATION_CELLS = "cells.jsonl"
"""The file in a run folder where an interrupted evaluation goes on."""
STUDY_CELLS = "cells"
"""The same of studies."""


def default_told(value: Any) -> str | None:
    """What help says of an option's default: nothing of a switch that is off."""
    if value is None or value is False:
        return None
    return " ".join(f"{part:g}" for part in value) if isinstance(value, tuple) else str(value)


def fail(message: str, code: int, error: BaseException | None, debug: bool) -> int:
    """Prints one sentence on standard error (the traceback before it with debug); returns the exit code."""
    if debug and error is not None:
        import traceback

        traceback.print_exception(error)
    print(f"lengthen: {message}", file=sys.stderr)
    return code


def sentence(error: CycloptsError) -> str:
    """What cyclopts says of a command line, without its box."""
    lines = [line.strip(" │╭╮╰╯─") for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line)
    end = "" if text.endswith(("?", ".")) else "."
    return f"{text}{end} See `lengthen COMMAND --help`."


_training_options: dict[str, Any] = {}


def file_options(tokens: Sequence[str]) -> list[Any]:
    """What --config says: options of the command for cyclopts, `training:` kept for the trainer."""
    _training_options.clear()
    path = next((b for a, b in itertools.pairwise(tokens) if a == "--config"), None)
    path = path or next((t.partition("=")[2] for t in tokens if t.startswith("--config=")), None)
    if path is None:
        return []
    import yaml
    from cyclopts.config import Dict

    try:
        options = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"The configuration {path} cannot be read ({' '.join(str(error).split())}).") from None
    if not isinstance(options, dict) or not isinstance(options.get("training", {}), dict):
        raise InputError(f"The configuration {path} must hold options by name, and `training` a mapping.")
    _training_options.update(options.pop("training", {}))
    return [Dict(options, use_commands_as_keys=False, source=str(path))]


def prepare(common: Common) -> dict[str, Any]:
    """Quiet libraries, the thread count; returns the trainer's options of --config."""
    import os

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if not 0 <= common.seed < 2**32:
        raise InputError(f"The seed is {common.seed}; give a number from 0 to {2**32 - 1}.")
    if common.threads is not None:
        if common.threads < 1:
            raise InputError(f"The number of threads is {common.threads}; give at least 1.")
        torch.set_num_threads(common.threads)
    return dict(_training_options)


def device_of(common: Common) -> str:
    """The device asked for, or the first GPU, or the CPU."""
    import torch

    if common.device is not None:
        try:
            torch.empty(0, device=common.device)
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"The device {common.device} cannot be used ({str(error).splitlines()[0]}).") from None
        return common.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def sizes(text: str) -> list[int]:
    """Numbers of tokens, divided by commas: 512,4k,1M, k being 1,024 and M its square."""
    found = []
    for part in text.split(","):
        number, unit = part.strip(), part.strip()[-1:].lower()
        factor = {"k": 1 << 10, "m": 1 << 20}.get(unit, 1)
        number = number[:-1] if factor > 1 else number
        if not number.isdecimal():
            raise InputError(f"{part.strip()!r} is no number of tokens; write such as 512,4k,1M.")
        found.append(int(number) * factor)
    return found


def shares(text: str) -> list[float]:
    """Numbers divided by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{text!r} are no shares; write such as 0,0.5,1.") from None


def method_folder(common: Common) -> Path | None:
    """Where a run folder keeps the fit of the training-free method that the model ran under."""
    return None if common.out is None else common.out / "method"


def told_under(model: str, fitted: FittedMethod | None) -> str:
    """What a result calls a model that ran under a method."""
    return model if fitted is None else f"{model} under {fitted.method.name}"


def require_other_text(calibration: str | None, data: str) -> None:
    """Refuses to judge by the text that a method is fitted on."""
    if calibration is not None and Path(calibration).resolve() == Path(data).resolve():
        raise InputError(
            f"{data} is to judge by, so that no method may be fitted on it; give --calibration another text."
        )


def check_steps(steps: int, train_context: int) -> None:
    """Refuses what no run can do, before a model is loaded."""
    if steps < 1:
        raise InputError(f"The number of steps is {steps}; give at least 1.")
    if train_context < 1:
        raise InputError(f"The training context is {train_context}; give at least 1 position.")


@contextmanager
def run_folder(out: Path | None, command: str, common: Common, *, resume: bool = False) -> Iterator[None]:
    """Makes sure that the run folder can be written before any work, and says in run.json what runs there.

    A folder that holds a run is refused, with --overwrite set aside until the new one is done, and gone on in with
    resume. Where the input turns out to be bad before anything else was written, no trace stays.
    """
    import json
    import shutil

    from lengthen.results import SCHEMA_VERSION, versions, write_text

    if out is None or not _first_process():
        yield
        return
    aside = out.with_name(f".{out.name}.replaced")
    begun = (out / name for name in (DIAGNOSIS_CHECKPOINT, STUDY_CELLS, EVALUATION_CELLS))
    checkpointed = any(out.glob("checkpoint-*/complete.json")) or any(folder.exists() for folder in begun)
    if resume and common.overwrite:
        raise InputError(f"--resume goes on in {out} and --overwrite replaces it; give one of them.")
    if resume and checkpointed:
        pass
    elif checkpointed or (out / "results").exists() or (out / "model").exists():
        if not common.overwrite:
            other = "go on with --resume" if checkpointed else "choose another --out"
            raise InputError(f"{out} already holds a run; {other}, or replace it with --overwrite.")
        shutil.rmtree(aside, ignore_errors=True)
        out.rename(aside)
    elif resume:
        print(f"lengthen: {out} holds no checkpoint to resume from; the run begins afresh.", file=sys.stderr)
    elif (out / "run.json").exists():
        print(f"lengthen: {out} holds a run that was not finished; it is replaced.", file=sys.stderr)
        (out / "metrics.jsonl").unlink(missing_ok=True)
    fresh = not out.exists()
    document = {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "arguments": sys.argv[1:],
        "seed": common.seed,
        "versions": versions(),
    }
    write_text(out / "run.json", json.dumps(document, indent=1) + "\n")
    try:
        yield
    except InputError:
        if fresh and [p.name for p in out.iterdir()] == ["run.json"]:
            shutil.rmtree(out)
            if aside.exists():
                aside.rename(out)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def write_page(out: Path) -> None:
    """Writes the run folder's page and figures."""
    from lengthen.reporting import write_report

    if _first_process():
        write_report(out)


def _first_process() -> bool:
    """Whether this process speaks: of several under torchrun or accelerate launch only the first does."""
    import os

    return os.environ.get("RANK", "0") == "0"


def print_json(document: dict[str, Any]) -> None:
    """Prints a document as JSON and nothing else."""
    import json

    if _first_process():
        print(json.dumps(document, indent=1, allow_nan=False))


def show(result: Result, common: Common, out: Path | None) -> None:
    """Prints a result as JSON or as tables."""
    if common.json:
        print_json(result.to_json())
        return
    from lengthen.reporting import terminal

    if not _first_process():
        return
    terminal.show(result)
    if out is not None:
        print(f"Report: {out / 'report.html'}")


class Progress:
    """A bar per stage with the time left, on standard error, quiet where that is no terminal."""

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

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bars.stop()

    def stage(self, name: str, done: int, todo: int) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=todo)
        self._bars.update(self._tasks[name], completed=done, total=todo)

    def single(self, name: str) -> Any:
        return lambda done, todo: self.stage(name, done, todo)
