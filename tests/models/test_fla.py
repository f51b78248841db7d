"""fla's models on a CPU: what stands in for Triton, how they are loaded, and the faults of the library's own path."""

import copy
import importlib
import inspect
import pickle
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from lengthen import load, unwrap, wrap
from lengthen.errors import InputError
from lengthen.models import fla_on_cpu
from lengthen.models.agreement import relative_error
from lengthen.models.tiny_models import build_tiny_model
from lengthen.models.tiny_models_fla import FLA_TINY_MODELS
from tests.models.family_properties import IDS, builder
from tests.models.fla_reference import fla, fla_runs_on_cpu  # noqa: F401

pytestmark = pytest.mark.usefixtures("fla")
TINY = {tiny.name: tiny for tiny in FLA_TINY_MODELS}


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


# -- what stands in for Triton ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "name, layer",
    [
        ("Mamba3", "backbone.layers.0.mixer (Mamba3)"),
        ("LogLinearMamba2", "backbone.layers.0.mixer (LogLinearMamba2)"),
        ("GSA", "model.layers.0.attn (GatedSlotAttention)"),
        ("ABC", "model.layers.0.attn (ABCAttention)"),
    ],
)
def test_a_class_that_no_family_runs_is_refused_by_name(fla, name, layer):  # noqa: F811
    """The first two raise for several tokens with a cache, the others are recurrences that fla calls attention."""
    models = importlib.import_module("fla.models")
    config = getattr(models, f"{name}Config")(hidden_size=64, num_hidden_layers=2, vocab_size=64)
    with torch.device("meta"):
        model = getattr(models, f"{name}ForCausalLM")(config)
    with pytest.raises(InputError, match=re.escape(f"has the recurrent layer {layer}")):
        wrap(model)
    assert not [m for m in model.modules() if "forward" in m.__dict__ or "_lengthen" in m.__dict__]


# -- loading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY)
def test_a_saved_model_loads(name, tmp_path):
    model = build_tiny_model(TINY[name])
    model.save_pretrained(tmp_path)
    assert torch.equal(load(tmp_path)(IDS).logits, wrap(model)(IDS).logits)


def test_a_fresh_process_finds_fla_by_itself(tmp_path):
    build_tiny_model(TINY["GLA"]).save_pretrained(tmp_path)
    code = (
        "import sys; from lengthen import load; assert 'fla' not in sys.modules; "
        f"assert type(load({str(tmp_path)!r})).__name__ == 'GLAForCausalLM'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_without_fla_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    build_tiny_model(TINY["GLA"]).save_pretrained(tmp_path)
    monkeypatch.setattr("lengthen.models.fla_library.CONFIG_MAPPING", {})
    monkeypatch.setitem(sys.modules, "fla", None)
    with pytest.raises(InputError, match=r"gla model of flash-linear-attention.*pip install 'lengthen\[fla\]'"):
        load(tmp_path)


# -- faults of the library's own path -----------------------------------------------------------------------------


@torch.no_grad()
def test_the_library_loses_its_cache_in_generate(fla_runs_on_cpu):  # noqa: F811
    """transformers hands the cache on as `cache`, which fla's forward swallows: a second token knows nothing."""
    model = builder("GLA", {})()
    first = model(IDS[:, :-1], use_cache=True)
    whole = model(IDS, use_cache=False).logits[:, -1:]
    alone = model(IDS[:, -1:], use_cache=False).logits
    named = model(IDS[:, -1:], past_key_values=first.past_key_values, use_cache=True).logits
    lost = model(IDS[:, -1:], cache=first.past_key_values, use_cache=True).logits
    assert torch.equal(lost, alone) and relative_error(lost, whole) > 0.1 and relative_error(named, whole) < 1e-5
    wrap(model)
    step = model(IDS[:, :-1], use_cache=True)
    assert relative_error(model(IDS[:, -1:], cache=step.cache, use_cache=True).logits, whole) < 1e-5
    with pytest.raises(TypeError, match="that the library filled"):
        model(IDS[:, -1:], cache=first.past_key_values, use_cache=True)


@torch.no_grad()
def test_checkpointing_drops_the_library_s_cache(fla_runs_on_cpu):  # noqa: F811
    """Of the library alone; with lengthen's states it is in every family's parity gate."""
    model = builder("GLA", {})()
    cache = model(IDS[:, :40], use_cache=True).past_key_values
    carried = model(IDS[:, 40:], past_key_values=cache, use_cache=True).logits
    model.train().gradient_checkpointing_enable({"use_reentrant": False})
    with torch.enable_grad():
        cache = model(IDS[:, :40], use_cache=True).past_key_values
        checkpointed = model(IDS[:, 40:], past_key_values=cache, use_cache=True).logits
    assert relative_error(checkpointed, carried) > 1e-2


@torch.no_grad()
def test_a_look_ahead_leaves_rwkv_7_s_cache_half_updated(fla_runs_on_cpu):  # noqa: F811
    """With use_cache=False its shifted token moves on and its matrix does not."""
    model = builder("RWKV7", {})()
    cache = model(IDS[:, :20], use_cache=True).past_key_values
    before = [{name: tensor.clone() for name, tensor in layer.items() if tensor is not None} for layer in cache]
    model(IDS[:, 20:40], past_key_values=cache, use_cache=False)
    for held, layer in zip(before, cache, strict=True):
        assert torch.equal(layer["recurrent_state"], held["recurrent_state"])
        assert not torch.equal(layer["conv_state"], held["conv_state"])

    wrap(model)
    state = model(IDS[:, :20]).final_state
    whole = model(IDS).logits[:, 20:]
    model(IDS[:, 20:40], initial_state=state, use_cache=False)
    assert relative_error(model(IDS[:, 20:], initial_state=state).logits, whole) < 1e-5


def test_rwkv_6_heeds_no_packing_where_a_state_is_carried(fla_runs_on_cpu):  # noqa: F811
    """With a cache its token shift reaches over the start of a packed sequence; a reset does not."""
    model = builder("RWKV6", {})()
    ids, starts = IDS[:1, :20], torch.tensor([0, 10, 20])
    with torch.no_grad():
        shift = model.model.layers[0].ffn
        x = model.model.embeddings(ids)
        apart = torch.cat([shift(x[:, :10])[0], shift(x[:, 10:])[0]], 1)
        cache = model(ids[:, :1], use_cache=True).past_key_values
        carried = shift(x, None, cache, starts)[0]
        assert (
            relative_error(carried[:, 11:], apart[:, 11:]) < 1e-6 < 1e-2 < relative_error(carried[:, 10], apart[:, 10])
        )
        reset = torch.zeros_like(ids, dtype=torch.bool)
        reset[:, 10] = True
        wrap(model)
        whole = model(ids, reset=reset, initial_state=model(ids[:, :1]).final_state)
        assert relative_error(whole.logits[:, 10:], model(ids[:, 10:]).logits) < 1e-5


def test_the_library_s_recurrent_delta_rule_has_no_backward():
    """It shows on a GPU alone: what the source says."""
    kernel = importlib.import_module("fla.ops.gated_delta_rule.fused_recurrent")
    function = next(f for n, f in vars(kernel).items() if n.endswith("Function") and hasattr(f, "backward"))
    assert "raise NotImplementedError" in inspect.getsource(function.backward)
    layer = importlib.import_module("fla.layers.gated_deltanet").GatedDeltaNet
    assert "q_len <= 64 and not self.training" in inspect.getsource(layer.forward)  # where the layer picks it
    model = wrap(builder("GatedDeltaNet", {})())
    assert not model.training
    model(IDS[:, :40], labels=IDS[:, :40]).loss.backward()
    assert all(p.grad.abs().sum() > 0 for n, p in model.named_parameters() if n.endswith("A_log"))
