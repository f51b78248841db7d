"""Mamba-2: one layer by its recurrence, and every hybrid of transformers, at shapes that use what sets it apart."""

import pytest
import torch
import torch.nn.functional as F

from lengthen.models.call import Marks
from lengthen.models.mamba2 import SPECS, forward, zero_state
from tests.conftest import tiny_mamba2
from tests.models.family_properties import *  # noqa: F403

CLASSES = {
    "Bamba": {
        "two groups": {},
        "attention first, one group, limits of the step, biases, tied, z-loss, eager": {
            "attn_layer_indices": [0],
            "mamba_n_groups": 1,
            "time_step_limit": (0.04, 0.06),
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
            "tie_word_embeddings": True,
            "z_loss_coefficient": 0.01,
            "attn_implementation": "eager",
        },
    },
    "Zamba2": {
        "two groups": {},
        "two shared blocks with adapters, no positions, a least step": {
            "num_hidden_layers": 4,
            "layers_block_type": ["hybrid", "linear_attention", "hybrid", "hybrid"],
            "num_mem_blocks": 2,
            "use_shared_attention_adapter": True,
            "use_mem_rope": False,
            "mamba_ngroups": 4,
            "time_step_min": 0.05,
            "add_bias_linear": True,
        },
    },
    "FalconH1": {
        "gate alone": {},
        "norm before the gate, multipliers": {
            "mamba_rms_norm": True,
            "mamba_d_ssm": 32,
            "mamba_n_heads": 2,
            "mamba_n_groups": 1,
            "lm_head_multiplier": 0.3,
            "embedding_multiplier": 2.0,
            "key_multiplier": 0.5,
            "ssm_multipliers": [0.7, 1.3, 0.9, 1.1, 0.8],
            "ssm_in_multiplier": 1.2,
            "ssm_out_multiplier": 0.6,
            "attention_in_multiplier": 1.1,
            "attention_out_multiplier": 0.9,
        },
        "norm after the gate": {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_d_conv": 2},
    },
    "GraniteMoeHybrid": {
        "experts": {},
        "dense, no positions, multipliers": {
            "num_local_experts": 0,
            "position_embedding_type": "nope",
            "logits_scaling": 3.0,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.5,
            "mamba_n_groups": 1,
        },
    },
    "NemotronH": {
        "two groups": {},
        "experts, a least step, biases": {
            "layers_block_type": ["full_attention", "linear_attention", "moe", "linear_attention"],
            "n_groups": 1,
            "n_routed_experts": 4,
            "moe_intermediate_size": 16,
            "moe_shared_expert_intermediate_size": 16,
            "time_step_min": 0.05,
            "use_bias": True,
            "mamba_num_heads": 2,
        },
    },
}

X = torch.randn(2, 11, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Recording:
    """A hook that keeps what it is given, and may put other gates in its place."""

    def __init__(self, replaced=None):
        self.replaced = replaced

    def gates(self, log_decay, writes, step, rates):
        self.log_decay, self.gain, self.step = log_decay, writes[0], step
        return (log_decay, *writes) if self.replaced is None else (log_decay * self.replaced, writes[0] * self.replaced)

    def read(self, kernel, *inputs, **options):
        self.inputs = inputs
        return kernel(*inputs, **options)


@pytest.fixture
def layer():
    return tiny_mamba2(n_groups=2, time_step_limit=(0.1, 0.9)).double().backbone.layers[0].mixer


@torch.no_grad()
def test_steps_decays_and_gains_are_by_definition(layer):
    layer.dt_bias.copy_(torch.tensor([-9.0, 0.0, 0.5, 9.0]))  # the first and the last lie beyond the limits
    hook = Recording()
    forward(layer, X, None, Marks(hook=hook))
    step = F.softplus(layer.in_proj(X)[..., -4:] + layer.dt_bias).clamp(0.1, 0.9)
    assert (step[..., 0] == 0.1).all() and (step[..., 3] == 0.9).all() and 0.1 < step[..., 1].mean() < 0.9
    torch.testing.assert_close(hook.step, step)
    torch.testing.assert_close(hook.gain, step)
    torch.testing.assert_close(hook.log_decay, -step * layer.A_log.exp())


@torch.no_grad()
def test_the_state_is_the_sum_of_what_was_written_and_decayed_since(layer):
    hook = Recording()
    _, state = forward(layer, X, None, Marks(hook=hook))
    _, key, value, log_decay, gain = hook.inputs
    since = log_decay.flip(1).cumsum(1).flip(1) - log_decay  # decay from a position to the end
    keys = key.repeat_interleave(2, 2)  # a group of keys serves two heads
    expected = torch.einsum("bth,bthk,bthv->bhkv", gain * since.exp(), keys, value)
    torch.testing.assert_close(state["recurrent"], expected)


@torch.no_grad()
def test_segments_equal_one_run(layer):
    whole, final = forward(layer, X, None, Marks())
    zero = zero_state(layer, 2, X.device, X.dtype)
    assert zero.keys() == SPECS.keys() == final.keys()
    assert all(t.shape == final[name].shape and not t.any() for name, t in zero.items())
    for cut in (1, 3, 10):
        first, state = forward(layer, X[:, :cut], zero, Marks())
        second, state = forward(layer, X[:, cut:], state, Marks())
        torch.testing.assert_close(torch.cat([first, second], 1), whole)
        for name, t in state.items():
            torch.testing.assert_close(t, final[name])


@torch.no_grad()
def test_where_nothing_decays_or_is_written_the_recurrent_state_stays_and_the_window_moves_on(layer):
    _, state = forward(layer, X[:, :5], None, Marks())
    _, after = forward(layer, X[:, 5:], state, Marks(hook=Recording(replaced=0)))
    assert torch.equal(after["recurrent"], state["recurrent"]) and not torch.equal(after["window"], state["window"])
