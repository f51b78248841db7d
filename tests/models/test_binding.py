"""What is known of a wrapped model: its layers by name, and the layout, start and weights of its states."""

import pytest
import torch
from torch import nn

from lengthen import unwrap, wrap
from lengthen.errors import InputError
from lengthen.models.attention import SequenceState
from lengthen.models.binding import (
    family_name,
    is_language_model,
    layout,
    library_model,
    sequence_start,
    state_of,
    vocabulary_size,
    weights_fingerprint,
    wrapped_layers,
    zero_state,
)
from lengthen.models.hooked_layers import hooked
from lengthen.models.hooks import Hook
from lengthen.models.tiny_models import TINY_MODELS, build_tiny_model
from lengthen.state import TensorSpec
from tests.conftest import tiny_mamba2
from tests.models.plain_models import Regressor
from tests.models.test_stateful_layer import LeakySums


def hybrid():
    return build_tiny_model(next(tiny for tiny in TINY_MODELS if tiny.title == "Bamba"))


class Counting(Hook):
    """Keeps a number a row, and counts positions."""

    name, period = "counting", 7

    def memory(self, layer, zero):
        return {"count": torch.zeros(len(next(iter(zero.values()))))}


def test_layers_are_told_in_the_model_s_order_under_its_names():
    model = wrap(nn.Sequential(Regressor("LSTM"), nn.Linear(3, 5), Regressor("GRU")))
    found = list(wrapped_layers(model))
    assert [(binding.name, binding.kind) for binding, _ in found] == [("0.layer", "classic"), ("2.layer", "classic")]
    assert [layer for _, layer in found] == [model[0].layer, model[2].layer]
    assert list(wrapped_layers(unwrap(model))) == []


def test_wrappers_around_a_model_are_seen_through():
    model = wrap(tiny_mamba2())
    around = torch.compile(nn.DataParallel(model), backend="eager")
    assert library_model(around) is library_model(model) is model
    assert is_language_model(around) and vocabulary_size(around) == 256
    assert layout(around) == layout(model) and weights_fingerprint(around) == weights_fingerprint(model)


def test_any_other_module_has_no_vocabulary():
    model = wrap(Regressor())
    assert not is_language_model(model) and vocabulary_size(model) is None


@pytest.mark.parametrize(
    "dtype, kept", [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)]
)
def test_the_zero_state_is_zero_and_at_least_float32(dtype, kept):
    state = zero_state(wrap(tiny_mamba2()).to(dtype), 3)
    assert set(state.tensors) == {f"backbone.layers.{i}.mixer" for i in (0, 1)}
    for named in state.tensors.values():
        assert named["recurrent"].shape == (3, 4, 16, 16) and named["window"].shape == (3, 64 + 2 * 16, 3)
        assert all(t.dtype == kept and not t.any() for t in named.values())
    assert zero_state(wrap(tiny_mamba2()), 1, "meta").device.type == "meta"


def test_a_model_that_is_not_wrapped_has_no_zero_state():
    with pytest.raises(InputError, match=r"^Regressor is not wrapped; call lengthen\.wrap"):
        zero_state(Regressor(), 1)


def test_a_hook_s_memory_belongs_to_the_state():
    model = wrap(Regressor())
    before = layout(model)
    with hooked(model, Counting()):
        state, inside = zero_state(model, 2), layout(model)
    assert set(state.tensors["layer"]) == {"hidden", "hook.count", "hook.positions"}
    assert state.specs["layer"]["hook.count"].kind == "window" and not state.specs["layer"]["hook.count"].noise
    assert state.specs["layer"]["hidden"] == TensorSpec("recurrent", head_axis=1)
    assert inside == state.layout != before == layout(model)


def test_a_state_of_some_layers_has_their_specs_alone():
    model = wrap(tiny_mamba2())
    state = state_of(model, {"backbone.layers.1.mixer": {"window": torch.zeros(2, 96, 3)}})
    assert {layer: dict(named) for layer, named in state.specs.items()} == {
        "backbone.layers.1.mixer": {"window": TensorSpec("window")}
    }
    assert state.family == "mamba2" and state.rows == 2


def test_a_sequence_starts_with_an_empty_cache_where_there_is_attention():
    start = sequence_start(wrap(hybrid()), 2)
    assert (
        isinstance(start, SequenceState) and start.attention.lengths.tolist() == [0, 0] and start.attention.width == 0
    )
    assert not isinstance(sequence_start(wrap(tiny_mamba2()), 2), SequenceState)


def test_several_families_are_named_once_each_in_the_model_s_order():
    layers = LeakySums(5), nn.Identity(), Regressor("GRU"), nn.Linear(3, 5), Regressor("RNN")
    assert family_name(wrap(nn.Sequential(*layers))) == "stateful-layer+classic"


def test_a_layout_tells_sizes_apart_and_not_weights():
    assert layout(wrap(tiny_mamba2(0))) == layout(wrap(tiny_mamba2(1))) != layout(wrap(tiny_mamba2(state_size=8)))


def test_the_weights_fingerprint_sees_every_weight():
    model = tiny_mamba2()
    before = weights_fingerprint(model)
    with torch.no_grad():
        model.backbone.layers[1].mixer.D[0] += 1e-3
    assert weights_fingerprint(model) != before


def test_the_weights_fingerprint_sees_buffers_and_not_whether_the_model_is_wrapped():
    model = Regressor()
    model.register_buffer("scale", torch.ones(3))
    before = weights_fingerprint(model)
    assert weights_fingerprint(wrap(model)) == before == weights_fingerprint(model.eval())
    model.scale[2] = 2
    assert weights_fingerprint(model) != before
