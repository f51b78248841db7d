"""Questions about rows and documents of one batch: what leaks from one into another is found, and told by name."""

from __future__ import annotations

import pytest
import torch

from lengthen.models.library_cache import LibraryPath
from lengthen.models.library_path import check_library_path
from lengthen.models.library_rows import left_padding, packed_rows, right_padding, row_independence
from lengthen.models.library_subject import Subject
from tests.models.toy_library import failed, toy


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("mixes rows", {"row-independence"}),
        ("leaks", {"packed-rows"}),
        ("ignores mask", {"left-padding", "right-padding"}),
        ("reads pads", {"left-padding-without-mask"}),
    ],
)
def test_a_fault_between_rows_fails_its_checks(fault: str, expected: set[str]) -> None:
    assert failed(check_library_path(toy(fault))) == expected


@torch.no_grad()
def test_the_way_of_packing_that_leaks_is_named() -> None:
    found = packed_rows(Subject(LibraryPath(toy("leaks")), seed=0))
    assert found is not None and not found.passed and found.detail == "leaks with position_ids"
    right = packed_rows(Subject(LibraryPath(toy()), seed=0))
    assert right is not None and right.passed and right.detail == ""


@torch.no_grad()
def test_the_kind_of_state_that_reads_pads_is_named() -> None:
    found = right_padding(Subject(LibraryPath(toy("ignores mask")), seed=0))
    assert found is not None and found.detail.startswith("recurrent state off by ")


@torch.no_grad()
def test_a_model_without_a_mask_is_not_asked_about_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    path = LibraryPath(toy())
    monkeypatch.setattr(path, "named", path.named - {"attention_mask"})
    subject = Subject(path, seed=0)
    assert left_padding(subject) is None and right_padding(subject) is None
    assert row_independence(subject).passed
