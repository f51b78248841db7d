"""What a wrapped model of fla's must do, as tests: those of every family, with fla's layers in plain loops as library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from tests.models.family_properties import *  # noqa: F403
from tests.models.family_properties import __all__ as _shared
from tests.models.fla_reference import fla_runs_on_cpu

__all__ = [*_shared, "fla_runs_on_cpu", "library_states", "run_fla_on_cpu", "value_first"]  # noqa: PLE0604


@pytest.fixture(autouse=True)
def run_fla_on_cpu(fla_runs_on_cpu: None) -> None:
    """Every test may call the library's own path."""


@pytest.fixture
def value_first() -> bool:
    """Whether fla's layer keeps its state as [value, key] (hazard: layouts differ between fla's own layers)."""
    return False


@pytest.fixture
def library_states(value_first: bool) -> Callable[[Any, Any], list[Tensor]]:
    def states(_: Any, output: Any) -> list[Tensor]:
        found = [layer["recurrent_state"] for layer in output.past_key_values]
        return [state.mT if value_first else state for state in found]

    return states


@pytest.fixture
def adapted_layers() -> list[str]:
    return ["o_proj"]
