"""fla's models on a CPU: the classes that are refused, and the faults of the library's own path."""

import importlib
import inspect
import re

import pytest
import torch

from lengthen import wrap
from lengthen.errors import InputError
from lengthen.models.agreement import relative_error
from tests.models.family_properties import IDS, builder
from tests.models.fla_reference import fla, fla_runs_on_cpu  # noqa: F401

pytestmark = pytest.mark.usefixtures("fla")


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
