"""Jobs of a study run side by side, each on one thread in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch

Stage = Callable[[str, int, int], None]
"""Called with a stage's name, what is done of it and what there is to do."""
Job = tuple[Callable[..., object], tuple[object, ...]]


def workers_for(processes: int | None) -> int:
    """As many as asked for, or as there are CPUs."""
    return processes or len(os.sched_getaffinity(0))


def run_jobs(jobs: Sequence[Job], workers: int, stage: str, progress: Stage | None) -> None:
    """Runs jobs, side by side where there are several workers; the first error ends it and is raised."""
    tell = progress or (lambda stage, done, todo: None)
    if workers == 1 or len(jobs) < 2:
        for i, (function, arguments) in enumerate(jobs):
            function(*arguments)
            tell(stage, i + 1, len(jobs))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), context, torch.set_num_threads, (1,)) as pool:
        try:
            futures = [pool.submit(function, *arguments) for function, arguments in jobs]
            for i, future in enumerate(as_completed(futures)):
                future.result()
                tell(stage, i + 1, len(jobs))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
