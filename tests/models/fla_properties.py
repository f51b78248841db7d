"""What a wrapped model of fla's must do, as tests: those of every family, with fla's layers in plain loops as library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lengthen import unwrap, wrap
from tests.models.family_properties import *  # noqa: F403
from tests.models.family_properties import IDS, MASK, Build
from tests.models.family_properties import __all__ as _shared
from tests.models.fla_reference import fla, fla_runs_on_cpu

__all__ = [
    *_shared,
    "fla",
    "fla_runs_on_cpu",
    "library_states",
    "run_fla_on_cpu",
    "test_generate_gives_the_same_tokens",
    "value_first",
]


@pytest.fixture(autouse=True)
def run_fla_on_cpu(fla_runs_on_cpu: None) -> None:
    """Every test may call the library's own path."""


@pytest.fixture
def value_first() -> bool:
    """Whether fla's layer keeps its state as [value, key]: its layers differ in this."""
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


def test_generate_gives_the_same_tokens(build: Build) -> None:
    """As the library gives them without its cache: what it gives with one is wrong (see test_fla)."""
    model = build()
    prompts = {"input_ids": IDS[:2, :30], "attention_mask": MASK[:2, :30]}
    options = {"max_new_tokens": 6, "eos_token_id": None}
    for how in ({"do_sample": False}, {"num_beams": 3, "do_sample": False}):
        unwrap(model)
        expected = model.generate(**prompts, **options, **how, use_cache=False)
        wrap(model)
        for cached in (True, False):
            assert torch.equal(model.generate(**prompts, **options, **how, use_cache=cached), expected), (how, cached)
