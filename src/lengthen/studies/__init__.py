"""Named sweeps and the benchmark."""

from lengthen.studies.benchmarking import benchmark

__all__ = ["benchmark"]
