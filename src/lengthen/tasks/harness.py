"""lm-eval's tasks by name, run through the adapter: their scores as cells."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from torch import nn

from lengthen.errors import InputError
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
    of any other task has length 0. tokenizer: a directory or hub name, which RULER's tasks measure with. Raises InputError
    where lm-eval is not installed, has no such task, or the task has no accuracy.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            from lm_eval import simple_evaluate
            from lm_eval.tasks import TaskManager

            from lengthen.tasks.lm_eval_adapter import StateCarryingLM
    except ImportError as error:
        raise InputError(f"lm-eval cannot be used ({error}); install lengthen[lm-eval].") from None
    task = name.removeprefix(PREFIX)
    metadata: dict[str, Any] = {"max_seq_lengths": [length]}
    if isinstance(tokenizer, str | Path) and str(tokenizer) != "bytes":
        metadata["tokenizer"] = str(tokenizer)
    adapter = StateCarryingLM(model, codec)
    quiet = io.StringIO()  # the harness tells what it does on both
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        manager = TaskManager(metadata=metadata)
        if task not in manager.all_tasks:
            raise InputError(f"lm-eval has no task {task!r}; `lm_eval ls tasks` names those it has.")
        try:
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
            reason = " ".join(str(error).split())[:200].rstrip(".")
            raise InputError(f"lm-eval's task {task} cannot be run ({type(error).__name__}: {reason}).") from error
    if task not in found["results"] or task not in found["n-samples"]:
        raise InputError(f"{task} is a group of lm-eval's tasks; name its tasks one by one.")
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
