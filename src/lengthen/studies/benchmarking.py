"""`lengthen bench`: our recurrences against their peers on this machine, as ratios taken in one run."""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

import torch

from lengthen.errors import InputError
from lengthen.results import BenchmarkEntry, BenchmarkResult
from lengthen.studies.benchmark_cases import cases
from lengthen.studies.benchmark_pairs import Case, Step


def benchmark(
    ops: Iterable[str] | None = None,
    *,
    pairs: int = 5,
    memory: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> BenchmarkResult:
    """Time our recurrences and layers against their peers: one thread, interleaved pairs, CPU time, medians.

    Args:
        ops: the names to time (such as "ssd"), all when None.
        pairs: timed pairs of each comparison, after one untimed.
        memory: whether to measure peak memory too, each side in a process of its own.
        progress: gets a line of text as each comparison ends.

    Raises:
        InputError: an unknown name, or no pair at all.
    """
    wanted = None if ops is None else list(ops)
    known = {case.op for case in cases()}
    for name in wanted or []:
        if name not in known:
            raise InputError(f"There is nothing called {name} to benchmark; choose from {', '.join(sorted(known))}.")
    if pairs < 1:
        raise InputError(f"{pairs} pairs measure nothing; ask for at least 1, or 5 for a steady median.")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        entries, left_out = [], []
        gflops = matrix_gflops()
        for case in cases():
            if wanted is not None and case.op not in wanted:
                continue
            try:
                entry = _measure(case, pairs, memory)
            except InputError as error:
                left_out.append(f"{case.op} at {case.length} against {case.peer}: {error}")
                continue
            entries.append(entry)
            progress(f"{case.op}, {case.shape}, {case.length}, {case.mode}: {entry.ratio:.1f} times {case.peer}")
        return BenchmarkResult(threads=1, pairs=pairs, matrix_gflops=gflops, entries=entries, left_out=left_out)
    finally:
        torch.set_num_threads(threads)


def matrix_gflops() -> float:
    """The rate of PyTorch's fp32 matrix product on one thread, best of several, at a layer's shape."""
    rows, inner, columns = 2048, 768, 3072
    left, right = torch.randn(rows, inner), torch.randn(inner, columns)
    return 2e-9 * rows * inner * columns / min(_cpu_seconds(lambda: left @ right) for _ in range(8))


def _measure(case: Case, pairs: int, memory: bool) -> BenchmarkEntry:
    torch.manual_seed(0)
    ours, peer = case.build(case)
    ours(), peer()
    times = [(_cpu_seconds(ours), _cpu_seconds(peer)) for _ in range(pairs)]
    seconds = statistics.median(own for own, _ in times)
    share = None
    if case.matrix_flops and "bf16" not in case.mode:
        share = 1e-9 * case.matrix_flops / seconds / matrix_gflops()
    return BenchmarkEntry(
        op=case.op,
        shape=case.shape,
        length=case.length,
        mode=case.mode,
        peer=case.peer,
        ratio=statistics.median(other / own for own, other in times),
        memory_ratio=_extra_memory(case, False) / _extra_memory(case, True) if memory and case.with_memory else None,
        ceiling_share=share,
        positions_per_second=case.length / seconds,
    )


def _cpu_seconds(step: Step) -> float:
    gc.collect()
    start = time.process_time()
    step()
    return time.process_time() - start


def _extra_memory(case: Case, ours: bool) -> float:
    program = (
        f"from lengthen.studies.benchmark_cases import measure_memory; print(measure_memory({case.name!r}, {ours}))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return max(1.0, float(run.stdout.split()[-1]))
