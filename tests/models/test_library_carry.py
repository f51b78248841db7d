"""Questions about a carried state: each fault of a model's own path is found by the question it belongs to, alone."""

from __future__ import annotations

import pytest
import torch

from lengthen.models.library_cache import LibraryPath
from lengthen.models.library_carry import positions_continue, segments, state_carried
from lengthen.models.library_path import check_library_path
from lengthen.models.library_subject import Subject
from lengthen.models.tiny_models import TINY_MODELS, build_tiny_model
from tests.models.toy_library import SwallowingToy, failed, toy


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("on module", {"state-reachable", "gradient-through-state"}),
        ("stale", {"state-reachable", "fresh-start"}),
        ("rescales", {"weights-untouched"}),
        ("restarts", {"segments", "state-carried", "gradient-through-state"}),
        ("wrong steps", {"token-by-token"}),
        ("in place", {"in-place-update", "use-cache-false", "gradient-checkpointing"}),
        ("advances", {"use-cache-false"}),
    ],
)
def test_a_fault_in_carrying_fails_its_checks(fault: str, expected: set[str]) -> None:
    assert failed(check_library_path(toy(fault))) == expected


def test_a_swallowed_keyword_is_found() -> None:
    result = check_library_path(toy(kind=SwallowingToy))
    assert failed(result) == {"swallowed-keyword"}
    assert "cache_params, past_key_values, state" in next(c.meaning for c in result.checks if not c.passed)


@torch.no_grad()
def test_a_state_dropped_is_lost_whole_and_one_carried_not_at_all() -> None:
    kept, dropped = (state_carried(Subject(LibraryPath(toy(fault)), seed=0)) for fault in ("", "restarts"))
    assert kept is not None and kept.passed and kept.value == pytest.approx(0, abs=1e-5)
    assert dropped is not None and not dropped.passed and dropped.value == 1


@torch.no_grad()
def test_positions_are_asked_about_where_there_is_attention() -> None:
    assert positions_continue(Subject(LibraryPath(toy()), seed=0)) is None
    hybrid = next(model for model in TINY_MODELS if model.title == "Jamba")
    found = positions_continue(Subject(LibraryPath(build_tiny_model(hybrid)), seed=0))
    assert found is not None and found.passed


@torch.no_grad()
def test_segments_are_cut_at_no_multiple_of_a_chunk() -> None:
    lengths: list[int] = []

    class Watched(Subject):
        def pieces(self, tokens, each, cache=None):
            lengths.extend(each)
            return super().pieces(tokens, each, cache)

    assert segments(Watched(LibraryPath(toy()), seed=0)).passed
    assert lengths and min(lengths) < 4 and max(lengths) > 64 and not any(n % 64 == 0 for n in lengths)
