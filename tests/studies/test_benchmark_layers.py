"""Layers and models that the benchmark times: both sides compute the same."""

from typing import Any

import pytest
import torch

from lengthen.models.wrapping import is_wrapped
from lengthen.studies import benchmark_cases, benchmark_layers
from lengthen.studies.benchmark_pairs import BOTH, PRODUCTS, Case
from tests.studies.test_benchmark_recurrences import unless_missing

LAYERS = [case for case in benchmark_cases.cases() if case.op in ("mamba-1 layer", "mamba-2 layer")]


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)
def test_both_sides_of_a_layer_compute_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark_layers, "_model_steps", lambda case, loss, ours, peer: (loss, ours, peer))
    loss, ours, peer = unless_missing(case, 33)
    tokens = torch.randint(0, 256, (1, 33), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        value, expected = loss(ours, tokens), peer(tokens, labels=tokens).loss
    assert (value - expected).abs() <= 1e-4 * expected


def models_and_steps(case: Case, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Our model with its step, and the peer's with its own, at 33 positions."""
    models, made = [], benchmark_layers._model_steps

    def catch(case: Case, loss: Any, ours: Any, peer: Any) -> Any:
        models.extend([ours, peer])
        return made(case, loss, ours, peer)

    monkeypatch.setattr(benchmark_layers, "_model_steps", catch)
    torch.manual_seed(0)
    steps = unless_missing(case, 33)
    return list(zip(models, steps))


WHOLE = [case for case in benchmark_cases.cases() if case.op in ("mamba-2 layer", "mamba-2 model")]


@pytest.mark.parametrize("case", [case for case in WHOLE if case.mode == BOTH], ids=lambda case: case.name)
def test_steps_of_one_model_s_weights_have_the_same_gradients_and_leave_none(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[str, torch.Tensor]] = []
    pairs = models_and_steps(case, monkeypatch)
    assert [is_wrapped(model) for model, _ in pairs] == [True, False]
    for model, step in pairs:
        gradients: dict[str, torch.Tensor] = {}
        for name, parameter in model.named_parameters():
            parameter.register_hook(
                lambda gradient, name=name, kept=gradients: kept.__setitem__(name, gradient.clone())
            )
        step()
        assert all(parameter.grad is None for parameter in model.parameters())
        found.append(gradients)
    ours, peer = found
    assert ours.keys() == peer.keys() == {name for name, _ in pairs[1][0].named_parameters()}
    for name, expected in peer.items():
        assert (ours[name] - expected).norm() <= 1e-3 * expected.norm(), name


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.name)
def test_products_are_in_bfloat16_where_the_mode_says_so(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes = []
    for model, step in models_and_steps(case, monkeypatch):
        mixer = model.backbone.layers[0].mixer
        mixer.in_proj.register_forward_hook(lambda module, args, output: dtypes.append(output.dtype))
        step()
    assert dtypes == [torch.bfloat16 if case.mode.endswith(PRODUCTS) else torch.float32] * 2
