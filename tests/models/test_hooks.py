"""The hooks' protocol: a hook that does nothing, what a hook keeps in a layer's state, and under which names."""

import pytest
import torch

from lengthen.kernels import ssd
from lengthen.models.hooks import MEMORY, MEMORY_SPEC, POSITIONS, Hook, LayerView, is_recurrent, lane_name, memory_of
from lengthen.state import TensorSpec

SPECS = {"h": TensorSpec("recurrent", head_axis=1), "window": TensorSpec("window")}
ZERO = {"h": torch.zeros(3, 2, 4), "window": torch.zeros(3, 5, 1)}
MIX = {"window": torch.zeros(3, 5, 1)}


class Keeping(Hook):
    """Keeps a number for each head."""

    def memory(self, layer, zero):
        return {layer: zero["h"].new_zeros(zero["h"].shape[:2])}


class Staggered(Keeping):
    period, lanes = 6, 3


class Periodic(Hook):
    period = 6


def view(**memory):
    return LayerView("mix", "mamba2", SPECS, None, memory)


def test_a_hook_as_it_stands_does_nothing():
    hook, seen = Hook(), view()
    log_decay, gain = -torch.rand(3, 7, 2), torch.ones(3, 7, 2)
    assert hook.gates(seen, log_decay, gain) == (log_decay, gain) and hook.between(seen, ZERO) is ZERO
    inputs = torch.randn(3, 7, 1, 4), torch.randn(3, 7, 1, 4), torch.randn(3, 7, 2, 5), log_decay, gain
    for found, expected in zip(hook.read(seen, ssd, *inputs, initial_state=None), ssd(*inputs)):
        assert torch.equal(found, expected)
    assert hook.memory("mix", ZERO) == memory_of(hook, "mix", ZERO, SPECS) == {}
    assert seen.left is None and seen.memory == {}


def test_tokens_that_leave_are_noted_in_the_view():
    seen, tokens = view(), torch.tensor([[True, False]])
    seen.leave(tokens)
    assert seen.left is tokens


def test_only_a_window_is_no_recurrence():
    assert is_recurrent(ZERO, SPECS) and not is_recurrent(MIX, SPECS) and not is_recurrent({}, SPECS)


def test_a_memory_lies_in_the_state_under_a_name_of_its_own_and_only_beside_a_recurrence():
    found = memory_of(Keeping(), "mix", ZERO, SPECS)
    assert {name: t.shape for name, t in found.items()} == {f"{MEMORY}mix": (3, 2)}
    assert memory_of(Keeping(), "mix", MIX, SPECS) == {}
    assert MEMORY_SPEC.kind == "window" and not MEMORY_SPEC.noise


@pytest.mark.parametrize("zero", [ZERO, MIX])
def test_a_period_counts_the_positions_of_every_row_also_of_a_channel_mix(zero):
    found = memory_of(Periodic(), "mix", zero, SPECS)
    assert found.keys() == {POSITIONS} and POSITIONS.startswith(MEMORY)
    assert found[POSITIONS].dtype == torch.long and found[POSITIONS].tolist() == [0, 0, 0]


def test_every_lane_but_the_first_keeps_a_state_and_a_memory_of_its_own():
    found = memory_of(Staggered(), "mix", ZERO, SPECS)
    own = {f"{MEMORY}mix", POSITIONS}
    others = {lane_name(lane, name) for lane in (1, 2) for name in ("h", "window", f"{MEMORY}mix")}
    assert found.keys() == own | others and len(others) == 6
    assert all(name.startswith(MEMORY) and not t.any() and len(t) == 3 for name, t in found.items())
    assert found[lane_name(2, "h")].shape == ZERO["h"].shape
    assert memory_of(Staggered(), "mix", MIX, SPECS).keys() == {POSITIONS, *(lane_name(i, "window") for i in (1, 2))}
