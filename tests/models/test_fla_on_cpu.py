"""fla's modules on a CPU: what stands in for Triton, put on with wrap() and taken off again."""

import copy
import importlib
import pickle

import pytest
import torch
import torch.nn.functional as F

from lengthen import unwrap, wrap
from lengthen.errors import InputError
from lengthen.models import fla_on_cpu
from lengthen.models.agreement import relative_error
from lengthen.models.tiny_models import build_tiny_model
from lengthen.models.tiny_models_fla import FLA_TINY_MODELS
from tests.models.family_properties import IDS, builder
from tests.models.fla_reference import fla  # noqa: F401

pytestmark = pytest.mark.usefixtures("fla")
TINY = {tiny.name: tiny for tiny in FLA_TINY_MODELS}


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_without_lengthen_the_library_runs_nothing_on_a_cpu():
    """fla imports where Triton is, and every model then fails."""
    model = build_tiny_model(TINY["GLA"])
    with pytest.raises(RuntimeError, match="active drivers"):
        model(IDS, use_cache=False)
    wrap(model)
    model(IDS)
    with pytest.raises(RuntimeError, match="active drivers"):
        unwrap(model)(IDS, use_cache=False)


def test_wrapping_takes_off_all_it_put_on_and_survives_copies():
    model = build_tiny_model(TINY["RWKV7"])
    wrap(model)
    logits = model(IDS).logits
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(IDS).logits, logits)
        assert all(m.__dict__["forward"].__self__ is m for m in copied.modules() if "forward" in m.__dict__)
    assert not [m for m in unwrap(model).modules() if "forward" in m.__dict__]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "name, options", [("RMSNorm", {}), ("LayerNorm", {"bias": True}), ("GroupNorm", {"bias": True})]
)
def test_norms_with_a_residual_give_the_norm_and_the_sum(name, options, dtype):
    modules = importlib.import_module("fla.modules")
    groups = (4,) if name == "GroupNorm" else ()
    norm = getattr(modules, name)(*groups, 16, eps=1e-3, dtype=torch.float32, **options)
    for parameter in norm.parameters():
        parameter.data = random(16) + 1
    x, residual = random(3, 5, 16).to(dtype), random(3, 5, 16).flip(0).to(dtype)
    y, total = fla_on_cpu.forward(norm, x, residual, True)
    exact = x.double() + residual.double()
    wide = exact.unflatten(-1, (4, 4)) if groups else exact
    wide = wide if name == "RMSNorm" else wide - wide.mean(-1, keepdim=True)
    expected = (
        (wide / (wide.square().mean(-1, keepdim=True) + 1e-3).sqrt()).flatten(2)
        if groups
        else wide / (wide.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    )
    expected = expected * norm.weight.double() + (0 if norm.bias is None else norm.bias.double())
    rounding = torch.finfo(dtype).eps  # of the output, and of float32 inside
    assert y.dtype == total.dtype == dtype
    assert relative_error(total, exact) <= rounding and relative_error(y, expected) < 4 * max(rounding, 1e-15)
    assert fla_on_cpu.forward(norm, x, residual, True, True)[1].dtype == dtype  # as the residual's
    if dtype == torch.bfloat16:
        assert fla_on_cpu.forward(norm, x, None, True, True)[1].dtype == torch.float32


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("size", [None, 4])
def test_mamba_2_s_norm_gates_before_or_after(before, size):
    modules = importlib.import_module("fla.modules.norm.layernorm_gated")
    norm = modules.RMSNormGated(16, group_size=size, norm_before_gate=before)
    norm.weight.data = random(16)
    x, z = random(3, 5, 16), random(3, 5, 16).flip(0)
    expected = modules.rms_norm_ref(x, norm.weight, None, z, norm.eps, size, before)
    assert relative_error(fla_on_cpu.forward(norm, x, z), expected) < 1e-6


@pytest.mark.parametrize("activation", ["swish", "sigmoid"])
def test_layer_norms_gate_after(activation):
    norm = importlib.import_module("fla.modules").FusedLayerNormGated(16, bias=True, activation=activation)
    norm.weight.data, norm.bias.data = random(16), random(16)
    x, g = random(3, 16), random(3, 16).flip(0)
    gate = g.sigmoid() if activation == "sigmoid" else F.silu(g)
    expected = F.layer_norm(x, (16,), norm.weight, norm.bias, norm.eps) * gate
    assert relative_error(fla_on_cpu.forward(norm, x, g), expected) < 1e-6


@pytest.mark.parametrize("fused", [True, False])
def test_powlu_is_its_definition_with_finite_gradients(fused):
    """From fla's kernel: x ** (m / (sqrt(x) + 1)) sigmoid(x) above 0, x sigmoid(x) below."""
    mlp = importlib.import_module("fla.modules").GatedMLP(8, intermediate_size=8, hidden_act="powlu", fuse_swiglu=fused)
    for projection in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
        projection.weight.data = torch.eye(8)
    x = torch.tensor([-3.0, -1e-3, 0.0, 1e-6, 0.5, 1.0, 2.0, 9.0], requires_grad=True)
    y = fla_on_cpu.forward(mlp, x)
    powers = [v if v <= 0 else v ** (3 / (v**0.5 + 1)) for v in x.tolist()]
    assert relative_error(y, torch.tensor(powers) * x.detach().sigmoid() * x.detach()) < 1e-6
    y.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_activations_are_fla_s():
    activations = importlib.import_module("fla.modules.activations").ACT2FN
    x = random(100)
    expected = {
        "relu": F.relu(x),
        "sigmoid": torch.sigmoid(x),
        "logsigmoid": F.logsigmoid(x),
        "silu": F.silu(x),
        "swish": F.silu(x),
        "sqrelu": F.relu(x) ** 2,
        "gelu": F.gelu(x, approximate="tanh"),
    }
    for name, y in expected.items():
        torch.testing.assert_close(fla_on_cpu.activation(activations[name])(x), y)


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"attn": {"layers": [1], "num_heads": 4}}, r"fla's attention \(model.layers.1.attn\)"),
        ({"attnres_block_size": 2}, "residuals by attention"),
    ],
)
def test_what_has_no_stand_in_is_refused(monkeypatch, options, reason):
    attention = importlib.import_module("fla.layers.attn")
    monkeypatch.setattr(attention, "flash_attn_func", lambda: None)  # without it such a model cannot even be built
    model = builder("GLA", options)()
    with pytest.raises(InputError, match=reason):
        wrap(model)
    assert not [m for m in model.modules() if "forward" in m.__dict__ or "_lengthen" in m.__dict__]


def test_what_is_not_fla_s_stays_as_it_is():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    fla_on_cpu.run_on_cpu(model)
    assert not [m for m in model.modules() if "forward" in m.__dict__]
    model[0].forward = mine = lambda x: x  # not put on by run_on_cpu, so not taken off either
    fla_on_cpu.run_as_before(model)
    assert model[0].forward is mine
    assert fla_on_cpu.activation(F.relu) is F.relu
    assert torch.equal(fla_on_cpu.forward(model[1], random(2, 4)), model[1](random(2, 4)))
