"""How fast the recurrences and layers are beside their peers."""

from __future__ import annotations

from dataclasses import dataclass, field

from lengthen.results.base import Result


@dataclass(frozen=True)
class BenchmarkEntry(Result):
    """One comparison: how many times faster than the peer, by CPU time, and how much less memory a step takes.

    ratio is the median over interleaved pairs of the peer's CPU time over ours; memory_ratio the peer's extra peak
    memory over ours; ceiling_share the share of the fp32 matrix-product rate, measured in the same run, that our
    matrix products reach over the whole time. None where it was not measured.
    """

    op: str
    shape: str
    length: int
    mode: str
    peer: str
    ratio: float
    memory_ratio: float | None
    ceiling_share: float | None
    positions_per_second: float


@dataclass(frozen=True)
class BenchmarkResult(Result):
    """Every comparison that could run, and why the others could not."""

    threads: int
    pairs: int
    matrix_gflops: float
    entries: list[BenchmarkEntry]
    left_out: list[str] = field(default_factory=list)
