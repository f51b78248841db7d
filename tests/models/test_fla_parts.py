"""What fla's layers share: convolutions with one window, heads that share keys, unit vectors, and norms with gates."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthen.models.call import Marks
from lengthen.models.fla_on_cpu import run_as_before, run_on_cpu
from lengthen.models.fla_parts import convolved, fla_kind, heads, normed_and_gated, precise, returns, unit, zero_window

NAMES = ("q_conv1d", "k_conv1d", "v_conv1d")


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Convolution(nn.Conv1d):
    """The attributes of fla's ShortConvolution."""

    def __init__(self, channels, width, activation, bias):
        super().__init__(channels, channels, width, groups=channels, padding=width - 1, bias=bias)
        self.hidden_size, self.activation = channels, activation

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x.mT)[..., : x.shape[1]].mT
        return y if self.activation is None else F.silu(y)


def layer(activations=("silu", "silu", "silu"), bias=False, width=4):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = [Convolution(n, width, activation, bias) for n, activation in zip((2, 2, 4), activations)]
    return SimpleNamespace(**dict(zip(NAMES, made)))


INPUTS = [random(2, 7, n, seed=n) for n in (2, 2, 4)]


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activations", [("silu",) * 3, (None,) * 3, ("silu", None, "silu"), (None, "silu", None)])
def test_several_convolutions_run_as_each_alone(activations, bias):
    made = layer(activations, bias)
    outputs, state = convolved(made, NAMES, INPUTS, {}, Marks())
    for name, x, y in zip(NAMES, INPUTS, outputs, strict=True):
        torch.testing.assert_close(y, getattr(made, name)(x))
    assert torch.equal(state["window"], torch.cat(INPUTS, -1)[:, -3:].mT)


@torch.no_grad()
def test_the_common_window_joins_segments():
    made = layer(bias=True)
    start = {"window": zero_window(made, NAMES, 2, torch.device("cpu"), torch.float32)["window"]}
    first, state = convolved(made, NAMES, [x[:, :2] for x in INPUTS], start, Marks())
    second, state = convolved(made, NAMES, [x[:, 2:] for x in INPUTS], state, Marks())
    whole, final = convolved(made, NAMES, INPUTS, {}, Marks())
    for one, two, both in zip(first, second, whole, strict=True):
        torch.testing.assert_close(torch.cat([one, two], 1), both)
    assert torch.equal(state["window"], final["window"])


def test_a_window_has_the_channels_of_all_convolutions_and_one_input_less_than_they_see():
    window = zero_window(layer(width=3), NAMES, 5, torch.device("cpu"), torch.float64)["window"]
    assert window.shape == (5, 2 + 2 + 4, 2) and window.dtype == torch.float64 and not window.any()


def test_a_layer_without_convolutions_has_no_window():
    without = SimpleNamespace()
    assert zero_window(without, NAMES, 5, torch.device("cpu"), torch.float32) == {}
    outputs, state = convolved(without, NAMES, INPUTS, {}, Marks())
    assert state == {} and all(y is x for y, x in zip(outputs, INPUTS, strict=True))


def test_every_head_of_the_keys_stands_for_the_heads_that_share_it():
    x = torch.arange(12.0).view(1, 2, 6)
    assert heads(x, 3).tolist() == [[[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]]
    assert heads(x, 3, 2)[0, 0].tolist() == [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]]


@pytest.mark.parametrize(
    "dtype, wide", [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)]
)
def test_unit_vectors_are_made_in_at_least_float32_and_zero_stays_zero(dtype, wide):
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e-3, 4e-3]], dtype=dtype)
    found = unit(x)
    assert precise(x).dtype == found.dtype == wide
    torch.testing.assert_close(found[0], torch.tensor([0.6, 0.8], dtype=wide))
    assert found[1].tolist() == [0, 0]
    squared = x[2].to(wide).square().sum()  # against 1e-6, which is added to it
    torch.testing.assert_close(found[2].square().sum(), squared / (squared + 1e-6))


@torch.no_grad()
def test_the_output_is_normed_a_head_and_gated_by_the_input_or_not():
    norm, gate = nn.LayerNorm(3), nn.Linear(5, 6)
    y, x = random(2, 7, 2, 3), random(2, 7, 5)
    parts = {"g_norm": norm, "g_proj": gate, "gate_fn": torch.sigmoid}
    gated = normed_and_gated(SimpleNamespace(**parts), y, x)
    torch.testing.assert_close(gated, norm(y).flatten(2) * torch.sigmoid(gate(x)))
    plain = normed_and_gated(SimpleNamespace(**parts, use_output_gate=False), y, x)
    torch.testing.assert_close(plain, norm(y).flatten(2))

    def norm_then_gate(y, g):
        return norm(y) * F.silu(g)

    fused = SimpleNamespace(fuse_norm_and_gate=True, g_norm_swish_gate=norm_then_gate, g_proj=gate)
    torch.testing.assert_close(normed_and_gated(fused, y, x), norm(y).flatten(2) * F.silu(gate(x)))


def test_a_kind_of_fla_s_is_prepared_for_a_cpu_and_returns_three_unless_it_says_otherwise():
    fields = {"name": "n", "kernel": "ssd", "layers": (), "forward": convolved, "zero_state": zero_window, "specs": {}}
    kind, own = fla_kind(**fields), fla_kind(**fields, returns=precise, own_cache=True)
    assert (kind.prepare, kind.restore, kind.own_cache) == (run_on_cpu, run_as_before, False)
    assert kind.returns(None, 5) == returns(None, 5) == (5, None, None)
    assert own.returns is precise and own.own_cache and own.prepare is run_on_cpu
