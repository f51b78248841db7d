"""lm-eval's tasks by name, run through the adapter: their scores as cells."""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models
from tokenizers.pre_tokenizers import ByteLevel
from torch import nn
from transformers import PreTrainedTokenizerFast

from lengthen.errors import InputError, one_line
from lengthen.results import Cell
from lengthen.tasks.codec import Codec
from lengthen.tasks.scoring import wilson
from lengthen.tasks.shared_prefixes import Cost

PREFIX = "lm-eval:"
ACCURACIES = ("acc", "exact_match")
"""Metrics that are accuracies, in the order in which one is taken; a task of RULER names its metrics by length."""


def harness_cell(
    model: nn.Module, name: str, length: int, codec: Codec, tokenizer: Any, *, n: int, seed: int, cost: Cost
) -> Cell:
    """The first n samples of lm-eval's task (name: lm-eval:TASK), by its own prompts and scoring.

    length: tokens that a task which makes its prompts by length (RULER's) makes them up to, its answer counted; the cell
    of any other task has length 0. tokenizer: of the codec, with which RULER's tasks measure their prompts. Raises InputError
    where lm-eval is not installed, has no such task, the task lacks something that it needs, or has no accuracy.
    """
    folder = task_folder(name)
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from lengthen.tasks.lm_eval_adapter import StateCarryingLM

    task = name.removeprefix(PREFIX)
    adapter = StateCarryingLM(model, codec)
    with _silence(), tempfile.TemporaryDirectory() as place:
        metadata = {"max_seq_lengths": [length], "tokenizer": tokenizer_on_disk(tokenizer, place)}
        manager = TaskManager(include_path=folder, include_defaults=False, metadata=metadata)
        try:
            with _without_downloads():
                found = simple_evaluate(
                    adapter,
                    tasks=[task],
                    limit=n,
                    task_manager=manager,
                    bootstrap_iters=0,
                    log_samples=False,
                    random_seed=seed,
                    metadata=metadata,
                )
        except InputError:
            raise
        except Exception as error:  # tasks read data and run code of their own, and raise anything
            raise InputError(_reason(task, error)) from error
    measured = {metric.partition(",")[0]: value for metric, value in found["results"][task].items()}
    by_length = str(length) in measured
    metric = str(length) if by_length else next((m for m in ACCURACIES if m in measured), None)
    if metric is None:
        raise InputError(
            f"lm-eval's task {task} measures {', '.join(m for m in measured if m != 'alias')}, and none of them is an "
            "accuracy; give lengthen.tasks.lm_eval_adapter.StateCarryingLM to lm_eval.simple_evaluate for those."
        )
    accuracy, count = float(measured[metric]), int(found["n-samples"][task]["effective"])
    cost.tokens += adapter.cost.tokens
    cost.processed += adapter.cost.processed
    tokens = adapter.cost.tokens / max(1, adapter.contexts)
    interval = list(wilson(accuracy, count))
    return Cell(name, length if by_length else 0, None, count, accuracy, interval, f"lm-eval's {metric}", tokens)


def task_folder(name: str) -> Path:
    """Where lm-eval's task (name: lm-eval:TASK) is defined. Raises InputError as harness_cell does."""
    try:
        with _silence():
            folders = _folders()
    except ImportError as error:
        raise InputError(f"lm-eval cannot be used ({error}); install lengthen[lm-eval].") from None
    task = name.removeprefix(PREFIX)
    if task not in folders:
        near = difflib.get_close_matches(task, folders, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`lm_eval ls tasks` names those it has."
        raise InputError(f"lm-eval has no task {task!r}; {hint}")
    found = folders[task]
    if found is None:
        raise InputError(f"{task} is a group of lm-eval's tasks; name its tasks one by one.")
    return found


def tokenizer_on_disk(tokenizer: Any, folder: str) -> str:
    """The directory or hub name of a tokenizer (bytes where None): `folder`, and written there, where it has none."""
    if isinstance(tokenizer, str | Path) and str(tokenizer) != "bytes":
        return str(tokenizer)
    if tokenizer is None or str(tokenizer) == "bytes":
        of_bytes = Tokenizer(models.BPE({letter: i for i, letter in enumerate(sorted(ByteLevel.alphabet()))}, []))
        of_bytes.pre_tokenizer = ByteLevel(add_prefix_space=False)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=of_bytes)
    tokenizer.save_pretrained(folder)
    return folder


@functools.cache
def _folders() -> dict[str, Path | None]:
    """Where each of lm-eval's tasks is defined, None for a group of them; thousands of files are read for it."""
    from lm_eval.tasks import TaskManager

    manager = TaskManager()
    single = set(manager.all_subtasks)
    places = {name: entry.yaml_path for name, entry in manager.task_index.items() if name in single}
    return {name: path.parent if (path := places.get(name)) is not None else None for name in manager.all_tasks}


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Nothing is written: the harness tells what it does on both streams, and so do programs that it calls."""
    sys.stderr.flush()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        before = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)


@contextlib.contextmanager
def _without_downloads() -> Iterator[None]:
    """RULER's tasks, all of them, have NLTK download what only those over essays need: without a network, for minutes."""
    try:
        import nltk
    except ImportError:  # the task will say so, if it is one of those
        yield
        return
    download, nltk.download = nltk.download, lambda *_, **__: False
    try:
        yield
    finally:
        nltk.download = download


def _reason(task: str, error: Exception) -> str:
    """Why a task cannot be run, and what to do."""
    if "punkt_tab" in str(error):
        return (
            f"lm-eval's task {task} parts sentences with NLTK's punkt_tab, which is not here; run `python -m "
            "nltk.downloader punkt_tab` once, where there is a network."
        )
    return f"lm-eval's task {task} cannot be run ({type(error).__name__}: {one_line(error)})."
