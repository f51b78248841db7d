"""Questions about training from a carried state: gradients, train mode, checkpointing and the state's dtype."""

from __future__ import annotations

import pytest
import torch

from lengthen.models.library_cache import LibraryPath
from lengthen.models.library_path import check_library_path
from lengthen.models.library_subject import Subject
from lengthen.models.library_training import gradient_checkpointing, gradient_through_state, state_dtype
from tests.models.toy_library import failed, toy


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("detaches", {"gradient-through-state"}),
        ("no gradient", {"gradient-through-state", "train-from-state"}),
        ("silent in training", {"train-mode-state"}),
        ("checkpoint drops", {"gradient-checkpointing"}),
        ("bfloat16 state", {"state-dtype"}),
    ],
)
def test_a_fault_in_training_fails_its_checks(fault: str, expected: set[str]) -> None:
    assert failed(check_library_path(toy(fault))) == expected


def test_a_detached_state_has_no_gradient_at_all() -> None:
    found = gradient_through_state(Subject(LibraryPath(toy("detaches")), seed=0))
    assert not found.passed and found.value == 1


def test_checkpointing_that_starts_from_zero_is_told_so() -> None:
    found = gradient_checkpointing(Subject(LibraryPath(toy("checkpoint drops")), seed=0))
    assert found is not None and found.detail == "it equals the run from zero exactly"


def test_no_question_where_the_class_has_no_checkpointing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy()
    monkeypatch.setattr(type(model), "supports_gradient_checkpointing", False)
    assert gradient_checkpointing(Subject(LibraryPath(model), seed=0)) is None


@torch.no_grad()
def test_the_state_of_a_half_precision_model_is_asked_for_float32() -> None:
    kept, rounded = (state_dtype(Subject(LibraryPath(toy(fault)), seed=0)) for fault in ("", "bfloat16 state"))
    assert kept is not None and kept.passed and kept.value == torch.finfo(torch.float32).eps
    assert rounded is not None and not rounded.passed and rounded.value == torch.finfo(torch.bfloat16).eps
    model = toy()
    state_dtype(Subject(LibraryPath(model), seed=0))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
