"""Each check of what a run carries catches the fault it is named after."""

import torch

from lengthen import check
from lengthen.models import language_models, mamba2
from lengthen.models.call import Marks
from tests.conftest import tiny_mamba2
from tests.models.faulty_mamba2 import failed


def test_a_dropped_state_is_caught(monkeypatch):
    found = failed(monkeypatch, lambda layer, x, state, marks: mamba2.forward(layer, x, None, marks))
    assert {"segments", "token-by-token", "random-state", "gradient-into-state", "gradient-through-state"} <= found


def test_a_dropped_window_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        state = None if state is None else {**state, "window": torch.zeros_like(state["window"])}
        return mamba2.forward(layer, x, state, marks)

    assert {"segments", "token-by-token"} <= failed(monkeypatch, forward)


def test_ignored_resets_are_caught(monkeypatch):
    found = failed(
        monkeypatch, lambda layer, x, state, marks: mamba2.forward(layer, x, state, Marks(None, marks.lengths))
    )
    assert found == {"packing", "packing-with-padding", "reset-at-start"}


def test_padding_in_the_state_is_caught(monkeypatch):
    found = failed(
        monkeypatch, lambda layer, x, state, marks: mamba2.forward(layer, x, state, Marks(marks.reset, None))
    )
    assert found == {"left-padding", "right-padding", "padding-identity", "packing-with-padding"}


def test_resets_ignored_beside_padding_are_caught(monkeypatch):
    def forward(layer, x, state, marks):
        return mamba2.forward(layer, x, state, Marks(marks.reset if marks.lengths is None else None, marks.lengths))

    assert failed(monkeypatch, forward) == {"packing-with-padding"}


def test_rows_mixed_up_in_larger_batches_are_caught(monkeypatch):
    def forward(layer, x, state, marks):
        y, final = mamba2.forward(layer, x, state, marks)
        return (y.flip(0), final) if len(y) > 2 else (y, final)

    assert failed(monkeypatch, forward) == {"rows"}


def test_an_error_in_long_runs_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        y, final = mamba2.forward(layer, x, state, marks)
        return torch.cat([y[:, :256], y[:, 256:] * 1.01], 1), final

    assert "segments" in failed(monkeypatch, forward)


def test_mixed_rows_are_caught(monkeypatch):
    def forward(layer, x, state, marks):
        y, final = mamba2.forward(layer, x, state, marks)
        return y + 1e-2 * y.mean(0, keepdim=True), final

    assert "rows" in failed(monkeypatch, forward)


def test_a_look_ahead_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        y, final = mamba2.forward(layer, x, state, marks)
        return y + 1e-2 * y.mean(1, keepdim=True), final

    assert "causal" in failed(monkeypatch, forward)


def test_a_state_written_in_place_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        y, final = mamba2.forward(layer, x, state, marks)
        if state is not None and not torch.is_grad_enabled():
            state["recurrent"].copy_(final["recurrent"])
        return y, final

    assert "state-unchanged" in failed(monkeypatch, forward)


def test_a_swallowed_keyword_is_caught(monkeypatch):
    monkeypatch.setattr(
        language_models,
        "_named",
        lambda cls, library, model, args, kwargs: {k: v for k, v in kwargs.items() if k in library.parameters},
    )
    assert {c.name for c in check(tiny_mamba2()).checks if not c.passed} == {"unknown-keyword"}


def test_a_rounded_state_is_caught(monkeypatch):
    def rounded(layer, x, state, marks):
        y, final = mamba2.forward(layer, x, state, marks)
        return y, {**final, "recurrent": final["recurrent"].bfloat16().float()}

    assert {"segments", "token-by-token"} <= failed(monkeypatch, rounded)


def test_a_state_dropped_in_half_precision_alone_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        return mamba2.forward(layer, x, None if x.dtype == torch.bfloat16 else state, marks)

    assert failed(monkeypatch, forward, torch.bfloat16) == {
        "half-precision",
        "padding-identity",
    }
