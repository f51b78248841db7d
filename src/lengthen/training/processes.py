"""What the processes of a run agree on: the first one's answer, and that none goes on where one failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from lengthen.errors import InputError, LengthenError, RunError, one_line

T = TypeVar("T")
TIMEOUT = 600
"""Seconds that a process waits for the others before it ends the run."""


def join(timeout: int = TIMEOUT) -> None:
    """Meets the other processes, if there are any; none then waits for another longer than this many seconds."""
    _state(timeout)


def process_share() -> tuple[int, int]:
    """(rank, world size) of this process."""
    state = _state()
    return state.process_index, state.num_processes


@contextmanager
def named_if_lost() -> Iterator[None]:
    """Turns what PyTorch raises where another process ended or hangs into a RunError."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        lost = isinstance(error, torch.distributed.DistError) or "gloo" in text or "NCCL" in text
        if _state().num_processes == 1 or not lost:
            raise
        raise RunError(
            f"Process {_state().process_index} of {_state().num_processes} lost another one, which ended or did not "
            f"answer in time ({one_line(error)}); see what that one said, and go on with --resume."
        ) from error


def first_decides(question: Callable[[], T]) -> T:
    """The first process's answer, on all of them; the InputError it meets instead is raised on all of them."""
    answer: list[tuple[T | None, str | None]] = [(None, None)]
    if _state().is_main_process:
        try:
            answer = [(question(), None)]
        except InputError as error:
            answer = [(None, str(error))]
    broadcast_object_list(answer)
    found, refusal = answer[0]
    if refusal is not None:
        raise InputError(refusal)
    return found  # type: ignore[return-value]


@contextmanager
def all_or_none() -> Iterator[None]:
    """Waits for all processes at the end; where one failed with a sentence, the others end with a RunError too."""
    failure: LengthenError | None = None
    try:
        yield
    except LengthenError as error:
        failure = error
    state = _state()
    failed = gather_object([(state.process_index, str(failure)) if failure is not None else None])
    if failure is not None:
        raise failure
    for item in failed:
        if item is not None:
            raise RunError(f"Process {item[0]} of {state.num_processes} failed: {item[1]}")


def _state(timeout: int = TIMEOUT) -> PartialState:
    """This process among the others, whom it meets on the first call."""
    return PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(seconds=timeout))
