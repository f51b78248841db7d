"""Named sweeps and the benchmark."""

from lengthen.studies.benchmark import benchmark

__all__ = ["benchmark"]
