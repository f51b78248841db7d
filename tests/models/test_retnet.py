"""RetNet and plain linear attention: fla's classes."""

import pytest
import torch

from lengthen import wrap
from lengthen.models import fla_on_cpu
from lengthen.models.agreement import relative_error
from lengthen.models.call import Marks
from lengthen.models.retnet import _turned, retention
from tests.models.family_properties import IDS, builder
from tests.models.fla_properties import *  # noqa: F403

CLASSES = {
    "RetNet": {
        "four heads": {},
        "grouped heads, convolutions, feature map, nothing fused": {
            "num_kv_heads": 2,
            "use_short_conv": True,
            "feature_map": "swish",
            "expand_v": 1.0,
            "fuse_norm": False,
            "fuse_swiglu": False,
            "tie_word_embeddings": True,
        },
    },
    "LinearAttention": {
        "products of two projections": {},
        "grouped heads, positive features, normed": {
            "num_kv_heads": 2,
            "feature_map": "elu",
            "norm_feature_map": True,
            "norm_q": True,
            "norm_k": True,
            "expand_v": 2.0,
        },
        "wider features, nothing fused": {"feature_map": "hedgehog", "fuse_norm": False, "tie_word_embeddings": True},
    },
}


@pytest.fixture
def library_states():
    """RetNet's library keeps keys as seen from position 0, lengthen from the one that comes next."""

    def states(model, output):
        found = [layer["recurrent_state"] for layer in output.past_key_values]
        if type(model).__name__.startswith("RetNet"):
            return [_turned(model.model.layers[0].attn.rotary, h.mT, torch.tensor(-IDS.shape[1])).mT for h in found]
        return [h[0] if isinstance(h, tuple) else h for h in found]

    return states


@pytest.fixture
def recurrence_parameter():
    return "k_proj.weight"


@torch.no_grad()
def test_a_retention_sees_differences_of_positions_however_it_is_cut():
    """o[t] = sum over s <= t of decay^(t - s) (R(t) q[t]) . (R(s) k[s]) v[s], written out over all pairs of positions."""
    layer = wrap(builder("RetNet", {"use_output_gate": False})().double()).model.layers[0].attn
    x = torch.randn(1, 90, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    heads, dim = layer.num_heads, layer.head_k_dim
    query, key, value = ((p(x)[0].unflatten(-1, (heads, -1))) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    rates = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    turns = torch.polar(torch.ones(90, dim // 2, dtype=torch.float64), torch.arange(90.0)[:, None] * rates)[:, None]
    query, key = ((torch.complex(*t.chunk(2, -1)) * turns) for t in (query, key))
    scores = torch.einsum("thk,shk->hts", query, key.conj()).real / dim**0.5
    apart = (torch.arange(90.0)[:, None] - torch.arange(90.0)).double()
    decays = (1 - 2.0 ** (-5 - torch.arange(heads, dtype=torch.float64))).view(-1, 1, 1) ** apart.clamp_min(0)
    y = torch.einsum("hts,shv->thv", scores * decays * (apart >= 0), value)[None]
    expected = layer.o_proj(fla_on_cpu.forward(layer.g_norm, y).flatten(-2))

    found, state = [], None
    for part in x.split([1, 7, 50, 32], 1):
        out, state = retention(layer, part, state, Marks())
        found.append(out)
    assert relative_error(torch.cat(found, 1), expected) < 1e-12
