"""Make recurrent sequence models work past the length they were trained on, and prove it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lengthen.comparison import compare
    from lengthen.demonstration import demo
    from lengthen.diagnosis import diagnose
    from lengthen.interventions import (
        TBPTT,
        FittedNoise,
        Intervention,
        Mixture,
        RandomNoise,
        Rows,
        StatePassing,
        Zero,
    )
    from lengthen.models import check, convert, load, unwrap, wrap, zero_state
    from lengthen.state import RecurrentState
    from lengthen.streaming import stream
    from lengthen.tasks import evaluate
    from lengthen.training import StateTrainer, post_train, pretrain
    from lengthen.training_free.rivalling import rivals

_HOMES = {
    "FittedNoise": "interventions",
    "Intervention": "interventions",
    "Mixture": "interventions",
    "RandomNoise": "interventions",
    "RecurrentState": "state",
    "Rows": "interventions",
    "StatePassing": "interventions",
    "StateTrainer": "training",
    "TBPTT": "interventions",
    "Zero": "interventions",
    "check": "models",
    "compare": "comparison",
    "convert": "models",
    "demo": "demonstration",
    "diagnose": "diagnosis",
    "evaluate": "tasks",
    "load": "models",
    "post_train": "training",
    "pretrain": "training",
    "rivals": "training_free.rivalling",
    "stream": "streaming",
    "unwrap": "models",
    "wrap": "models",
    "zero_state": "models",
}

__all__ = [
    "TBPTT",
    "FittedNoise",
    "Intervention",
    "Mixture",
    "RandomNoise",
    "RecurrentState",
    "Rows",
    "StatePassing",
    "StateTrainer",
    "Zero",
    "check",
    "compare",
    "convert",
    "demo",
    "diagnose",
    "evaluate",
    "load",
    "post_train",
    "pretrain",
    "rivals",
    "stream",
    "unwrap",
    "wrap",
    "zero_state",
]


def __getattr__(name: str) -> Any:
    """The public names, imported when first used, so that the command line answers at once."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"lengthen.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'lengthen' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
