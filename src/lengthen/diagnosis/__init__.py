"""How far a model generalises, and why it stops."""

from lengthen.diagnosis.certifying import certificate
from lengthen.diagnosis.diagnosing import diagnose
from lengthen.diagnosis.remembrance import effective_remembrance

__all__ = ["certificate", "diagnose", "effective_remembrance"]
