"""How far a model generalises, and why it stops."""

from lengthen.diagnosis.diagnosing import diagnose

__all__ = ["diagnose"]
