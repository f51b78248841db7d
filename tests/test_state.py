"""A RecurrentState is a value with a layout, and operations that give new values."""

import copy
import pickle

import pytest
import torch
from torch.utils import _pytree as pytree

from lengthen import RecurrentState, wrap, zero_state
from lengthen.errors import InputError
from lengthen.state import TensorSpec
from tests.conftest import tiny_mamba2

SPECS = {
    "a": {"h": TensorSpec("recurrent", head_axis=1), "w": TensorSpec("window")},
    "b": {"m": TensorSpec("recurrent", None, noise=False)},
}


def state(rows=3, seed=0, heads=2, family="test"):
    g = torch.Generator().manual_seed(seed)
    return RecurrentState(
        {
            "a": {
                "h": torch.randn(rows, heads, 4, 5, generator=g),
                "w": torch.randn(rows, 7, 3, generator=g).bfloat16(),
            },
            "b": {"m": torch.randn(rows, 6, generator=g)},
        },
        SPECS,
        family,
    )


def equal(x, y):
    return all(
        torch.equal(t, y.tensors[layer][name]) for layer, named in x.tensors.items() for name, t in named.items()
    )


def test_is_a_value():
    s = state()
    with pytest.raises(AttributeError, match="value"):
        s.family = "other"
    with pytest.raises(TypeError):
        s.tensors["a"]["h"] = torch.zeros(1)
    assert equal(s, state())


def test_recurrent_tensors_below_float32_are_refused():
    with pytest.raises(InputError, match="bfloat16"):
        state().map(lambda t, spec: t.bfloat16())


def test_rows_must_agree():
    with pytest.raises(InputError, match="rows"):
        RecurrentState({"a": {"h": torch.zeros(2, 1), "w": torch.zeros(3, 1)}}, SPECS, "test")


def test_rows_index_concatenate_where_and_zero():
    s, other = state(), state(seed=1)
    both = RecurrentState.concatenate([s, other])
    assert both.rows == 6
    assert equal(both.index([0, 1, 2]), s) and equal(both.index(torch.tensor([3, 4, 5])), other)
    mixed = s.where([True, False, True], other)
    assert equal(mixed.index([1]), other.index([1])) and equal(mixed.index([0, 2]), s.index([0, 2]))
    poisoned = s.map(lambda t, _: torch.full_like(t, float("nan")))
    assert equal(poisoned.zero_rows([True] * 3), s.zeros())
    assert equal(RecurrentState.average([s, s]), s)


def test_window_and_recurrent_are_told_apart():
    s = state().without_window()
    assert s.tensors["a"]["w"].abs().sum() == 0 and torch.equal(s.tensors["a"]["h"], state().tensors["a"]["h"])


def test_statistics_per_layer_and_head():
    s = state(heads=2)
    found = s.statistics()
    h = s.tensors["a"]["h"].double()
    assert set(found) == {"a", "b"} and set(found["a"]) == {"h"}
    assert torch.allclose(found["a"]["h"]["norm"], h.flatten(2).norm(dim=-1))
    assert torch.allclose(found["a"]["h"]["largest"], h.abs().flatten(2).amax(-1))
    assert found["b"]["m"]["mean"].shape == (3, 1)  # no head axis: one head


def test_layout_tells_models_apart_and_rows_do_not_matter():
    assert state(rows=1).layout == state(rows=5).layout
    with pytest.raises(InputError, match="another model"):
        state().require_layout(state(heads=3))
    with pytest.raises(InputError, match="another model"):
        state().where([True] * 3, state(family="other"))


def test_weights_fingerprint_is_an_error_only_where_both_are_known():
    state().require_weights("abc")
    state().with_weights("abc").require_weights("abc")
    with pytest.raises(InputError, match="weights abd"):
        state().with_weights("abd").require_weights("abc")


def test_save_and_load(tmp_path):
    s = state().with_weights("abc")
    s.save(tmp_path / "s.safetensors")
    found = RecurrentState.load(tmp_path / "s.safetensors")
    assert equal(s, found) and found.layout == s.layout and found.weights == "abc"
    assert found.tensors["a"]["w"].dtype == torch.bfloat16
    assert list(tmp_path.iterdir()) == [tmp_path / "s.safetensors"]


@pytest.mark.parametrize("content", [b"", b"not safetensors", None])
def test_a_damaged_or_missing_file_is_refused(tmp_path, content):
    path = tmp_path / "s.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"s\.safetensors"):
        RecurrentState.load(path)


def test_a_foreign_file_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "s.safetensors")
    with pytest.raises(InputError, match="not a state"):
        RecurrentState.load(tmp_path / "s.safetensors")


def test_a_saved_state_of_another_model_is_named(tmp_path):
    zero_state(wrap(tiny_mamba2(state_size=8)), 1).save(tmp_path / "state.safetensors")
    with pytest.raises(InputError, match="another model"):
        RecurrentState.load(tmp_path / "state.safetensors").require_layout(zero_state(wrap(tiny_mamba2()), 1))


def test_copies_and_pickles():
    assert equal(copy.deepcopy(state()), state()) and equal(pickle.loads(pickle.dumps(state())), state())


def test_pytorch_does_not_walk_into_it():
    """Mixed-precision wrappers cast tensors they find in containers; a state must reach the layers as it is."""
    s = state()
    assert pytree.tree_leaves({"x": s}) == [s]


def test_detach_and_gradients():
    s = state().map(lambda t, spec: t.float()).requires_grad()
    doubled = s.map(lambda t, _: t * 2)
    assert all(t.grad_fn is not None for named in doubled.tensors.values() for t in named.values())
    assert all(t.grad_fn is None for named in doubled.detach().tensors.values() for t in named.values())
