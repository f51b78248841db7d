"""How far a model generalises, and why it stops."""

from lengthen.diagnosis.diagnosing import diagnose
from lengthen.diagnosis.remembrance import effective_remembrance

__all__ = ["diagnose", "effective_remembrance"]
