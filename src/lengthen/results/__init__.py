"""What was found out, as plain data with a JSON form: nothing here computes, and a page only shows it."""

from lengthen.results.base import SCHEMA_VERSION, Result, versions, write_bytes, write_text
from lengthen.results.benchmarking import BenchmarkEntry, BenchmarkResult
from lengthen.results.comparison import Certificate, Comparison, Difference
from lengthen.results.diagnosis import (
    Bucket,
    Diagnosis,
    Drift,
    Forgetting,
    HeadDrift,
    HeadState,
    Patch,
    Patching,
    PositionPerplexity,
    Recommendation,
    Remembrance,
    RemembrancePoint,
    SequenceLosses,
)
from lengthen.results.experiments import Arm, Demonstration, RivalStudy, Spread, Study, StudyRow, TaskStudy
from lengthen.results.models import Check, CheckResult, Conversion, SupportedClass, SupportTable
from lengthen.results.tasks import Cell, Evaluation
from lengthen.results.training import TrainingPlan, TrainingRecord
from lengthen.results.training_free import Estimate, HeadUnderMethod, Rival, Rivals

__all__ = [
    "SCHEMA_VERSION",
    "Arm",
    "BenchmarkEntry",
    "BenchmarkResult",
    "Bucket",
    "Cell",
    "Certificate",
    "Check",
    "CheckResult",
    "Comparison",
    "Conversion",
    "Demonstration",
    "Diagnosis",
    "Difference",
    "Drift",
    "Estimate",
    "Evaluation",
    "Forgetting",
    "HeadDrift",
    "HeadState",
    "HeadUnderMethod",
    "Patch",
    "Patching",
    "PositionPerplexity",
    "Recommendation",
    "Remembrance",
    "RemembrancePoint",
    "Result",
    "Rival",
    "RivalStudy",
    "Rivals",
    "SequenceLosses",
    "Spread",
    "Study",
    "StudyRow",
    "SupportTable",
    "SupportedClass",
    "TaskStudy",
    "TrainingPlan",
    "TrainingRecord",
    "versions",
    "write_bytes",
    "write_text",
]
