"""Named sweeps and the benchmark."""

from lengthen.studies.benchmarking import benchmark
from lengthen.studies.lessons import LESSONS
from lengthen.studies.named_studies import STUDIES
from lengthen.studies.studying import study

__all__ = ["LESSONS", "STUDIES", "benchmark", "study"]
