"""fla's own layers on a CPU: what they call of Triton is put in its place as plain loops, written from its definition.

Nothing of lengthen is used, and a call of lengthen's that reached one of these would fail: they stand for the library
alone. Everything is computed in the inputs' own type, so that float64 tells more than float32.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.models.call import _current


@pytest.fixture
def fla() -> Any:
    """The library; imported for its tests alone, as it takes seconds."""
    return pytest.importorskip("fla", reason="flash-linear-attention is not installed")


@pytest.fixture
def fla_runs_on_cpu(monkeypatch: pytest.MonkeyPatch, fla: Any) -> None:
    """Puts plain loops where fla's modules and layers would call Triton."""
    for path, replacement in _REPLACEMENTS.items():
        where, name = path.rsplit(".", 1)
        module = importlib.import_module(where)
        assert hasattr(module, name), f"fla has no {path}"
        monkeypatch.setattr(module, name, _library_only(replacement))
    convolutions = importlib.import_module("fla.modules.causal_conv1d.ops").ShortConvolution
    monkeypatch.setattr(convolutions, "forward", _library_only(convolution))


def _library_only(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        assert _current.get() is None, f"a wrapped model reached fla's {function}"
        return function(*args, **kwargs)

    return called


def _packed(function: Callable[..., Any]) -> Callable[..., Any]:
    """fla's packing: with cu_seqlens, the sequences of the one row are run one after the other."""

    def per_sequence(*, cu_seqlens: Tensor | None = None, **given: Any) -> Any:
        if cu_seqlens is None:
            return function(**given)
        bounds, parts = cu_seqlens.tolist(), []
        for row, (start, end) in enumerate(itertools.pairwise(bounds)):
            cut = {
                name: value[row : row + 1] if name in ("initial_state", "cache") else value[:, start:end]
                for name, value in given.items()
                if isinstance(value, Tensor) and name not in _WHOLE
            }
            parts.append(function(**(given | cut)))
        outputs, states = zip(*parts)
        return torch.cat(outputs, 1), None if states[0] is None else torch.cat(states)

    return per_sequence


_WHOLE = ("u", "A_log", "dt_bias")

# -- modules ------------------------------------------------------------------------------------------------------


def norm(
    x: Tensor, weight: Tensor, bias: Tensor, residual=None, eps=1e-5, prenorm=False, residual_in_fp32=False, **more: Any
) -> Any:
    total = x if residual is None else x + residual
    groups = more.get("num_groups", 1)
    y = total.reshape(*total.shape[:-1], groups, -1)
    if not more.get("is_rms_norm"):
        y = y - y.mean(-1, keepdim=True)
    y = (y / (y.square().mean(-1, keepdim=True) + eps).sqrt()).reshape(total.shape)
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return (y, total) if prenorm else y


def rms_norm(*args: Any, **kwargs: Any) -> Any:
    return norm(*args, **kwargs, is_rms_norm=True)


def rms_norm_gated(x: Tensor, g: Tensor, weight: Tensor, bias: Tensor, activation: str, eps: float, **_: Any) -> Tensor:
    return rms_norm(x, weight, bias, eps=eps) * (g.sigmoid() if activation == "sigmoid" else g * g.sigmoid())


def rms_norm_linear(x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(rms_norm(x, norm_weight, norm_bias), weight, bias)


def grouped_norm_and_gate(x, weight, bias, z=None, eps=1e-6, group_size=None, norm_before_gate=True):
    gate = 1 if z is None else z * z.sigmoid()
    x = x if norm_before_gate else x * gate
    y = norm(x, weight, bias, eps=eps, is_rms_norm=True, num_groups=x.shape[-1] // (group_size or x.shape[-1]))
    return y * gate if norm_before_gate else y


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return gate * gate.sigmoid() * up


def swiglu_linear(gate: Tensor, up: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(swiglu(gate, up), weight, bias)


def swish_fwd(x: Tensor) -> Tensor:
    return x * x.sigmoid()


def swish_bwd(x: Tensor, dy: Tensor) -> Tensor:
    gate = x.sigmoid()
    return dy * gate * (1 + x * (1 - gate))


def sigmoid_fwd(x: Tensor) -> Tensor:
    return x.sigmoid()


def sigmoid_bwd(x: Tensor, dy: Tensor) -> Tensor:
    return dy * x.sigmoid() * (1 - x.sigmoid())


def sqrelu_fwd(x: Tensor) -> Tensor:
    return x.clamp_min(0) ** 2


def sqrelu_bwd(g: Tensor, x: Tensor) -> Tensor:
    return 2 * g * x.clamp_min(0)


def token_shift(x: Tensor, cu_seqlens=None, cache=None, output_cache=False) -> Any:
    before = torch.zeros_like(x[:, :1]) if cache is None else cache.reshape(x[:, :1].shape)
    delta = torch.cat([before, x[:, :-1]], 1) - x
    return (delta, x[:, -1]) if output_cache else delta


def convolution(self: Any, x: Tensor, mask: Tensor | None = None, **more: Any) -> Any:
    x = x if mask is None else x * mask.unsqueeze(-1)
    bound = functools.partial(convolve, weight=self.weight[:, 0], bias=self.bias, activation=self.activation)
    return _packed(bound)(x=x, **more)


def convolve(x, weight, bias, activation, cache=None, output_final_state=False, backend=None):
    """Token by token; the cache holds the last W inputs, of which fla uses W - 1."""
    width = weight.shape[1]
    kept = x.new_zeros(x.shape[0], x.shape[2], width) if cache is None else cache
    inputs = torch.cat([kept[..., 1:], x.mT], -1)
    y = torch.stack([(inputs[..., t : t + width] * weight).sum(-1) for t in range(x.shape[1])], 1)
    y = y if bias is None else y + bias
    y = y if activation is None else y * y.sigmoid()
    return y, inputs[..., -width:] if output_final_state else None


# -- recurrences --------------------------------------------------------------------------------------------------


def gla(q, k, v, g=None, gk=None, initial_state=None, output_final_state=False, state_v_first=False):
    """One decay a key channel; the state as fla keeps it, [value, key] where it asks for that."""
    decay = (g if gk is None else gk).exp()
    h = q.new_zeros(*q.shape[:1], *q.shape[2:], v.shape[-1]) if initial_state is None else initial_state
    h = h.mT if state_v_first and initial_state is not None else h
    outputs = []
    for t in range(q.shape[1]):
        h = decay[:, t, :, :, None] * h + k[:, t, :, :, None] * v[:, t, :, None]
        outputs.append((q[:, t, :, :, None] * h).sum(-2) / q.shape[-1] ** 0.5)
    return torch.stack(outputs, 1), (h.mT if state_v_first else h) if output_final_state else None


def rwkv6(r, k, v, w, u, scale, initial_state=None, output_final_state=False):
    """The output reads the state before the write, and the position itself through the bonus u."""
    h = r.new_zeros(*r.shape[:1], *r.shape[2:], v.shape[-1]) if initial_state is None else initial_state
    outputs = []
    for t in range(r.shape[1]):
        write = k[:, t, :, :, None] * v[:, t, :, None]
        outputs.append(((h + u[..., None] * write) * r[:, t, :, :, None]).sum(-2) * scale)
        h = w[:, t, :, :, None].exp() * h + write
    return torch.stack(outputs, 1), h if output_final_state else None


def rwkv7(r, w, k, v, a, b, scale, initial_state=None, output_final_state=False, **_):
    """The state [key, value] decays, and what a reads of it is written along b."""
    h = r.new_zeros(*r.shape[:1], *r.shape[2:], v.shape[-1]) if initial_state is None else initial_state
    outputs = []
    for t in range(r.shape[1]):
        read = (a[:, t, :, :, None] * h).sum(-2, keepdim=True)
        h = w[:, t, :, :, None].exp() * h + b[:, t, :, :, None] * read + k[:, t, :, :, None] * v[:, t, :, None]
        outputs.append((r[:, t, :, :, None] * h).sum(-2) * scale)
    return torch.stack(outputs, 1), h if output_final_state else None


def rwkv7_step(r, w, k, v, kk, a, **more):
    return rwkv7(r, w, k, v, -kk, kk * a, **more)


def six_mixtures(x, delta, *shares):
    return [x + delta * share for share in shares]


def scaled_keys(k, a, k_a):
    return k * (1 + (a - 1) * k_a)


def corrected_and_gated(o, r, k, r_k, v, g):
    return (o + ((r * k * r_k).sum(-1, keepdim=True) * v).flatten(-2)) * g


def l2_norm(x, eps=1e-6):
    return x / (x.square().sum(-1, keepdim=True) + eps).sqrt()


def delta_rule(
    q, k, v, beta, g=None, initial_state=None, output_final_state=False, state_v_first=False,
    use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False,
    A_log=None, dt_bias=None, safe_gate=False, lower_bound=None,
):  # fmt: skip
    """All that fla's kernels of the (gated, Kimi's) delta rule may do to their inputs, then the rule itself."""
    groups = v.shape[2] // q.shape[2]
    q, k = ((l2_norm(x) if use_qk_l2norm_in_kernel else x).repeat_interleave(groups, 2) for x in (q, k))
    beta = beta.sigmoid() if use_beta_sigmoid_in_kernel else beta
    beta = 2 * beta if allow_neg_eigval else beta
    if g is None:
        g = torch.zeros_like(beta)
    elif use_gate_in_kernel:
        rate = A_log.exp().view(-1, *[1] * (g.dim() - 3))
        g = g + dt_bias.view(g.shape[2:])
        g = -rate * F.softplus(g) if lower_bound is None else lower_bound * (rate * g).sigmoid()
    g = g if g.dim() == 4 else g[..., None]
    h = q.new_zeros(*v.shape[:1], v.shape[2], q.shape[-1], v.shape[-1]) if initial_state is None else initial_state
    h = h.mT if state_v_first and initial_state is not None else h
    outputs = []
    for t in range(q.shape[1]):
        h = g[:, t, :, :, None].exp() * h
        missing = v[:, t] - (k[:, t, :, :, None] * h).sum(-2)
        h = h + k[:, t, :, :, None] * (beta[:, t, :, None] * missing)[:, :, None]
        outputs.append((q[:, t, :, :, None] * h).sum(-2) / q.shape[-1] ** 0.5)
    return torch.stack(outputs, 1), (h.mT if state_v_first else h) if output_final_state else None


def hgrn(x, g, initial_state=None, output_final_state=False):
    h = torch.zeros_like(x[:, 0]) if initial_state is None else initial_state
    outputs = []
    for t in range(x.shape[1]):
        h = g[:, t].exp() * h + x[:, t]
        outputs.append(h)
    return torch.stack(outputs, 1), h if output_final_state else None


def retention(q, k, v, **more):
    rates = torch.log(1 - 2.0 ** (-5.0 - torch.arange(q.shape[2], dtype=torch.float64))).to(q.dtype)
    return gla(q, k, v, rates[:, None].expand_as(k), **more)


def rotary_embedding(x, cos, sin, interleaved=False, seqlen_offsets=0, cu_seqlens=None, chunk_indices=None):
    """Turns [B, T, H, D] at positions counted from each sequence's offset."""
    assert not interleaved
    if cu_seqlens is None:
        starts = torch.as_tensor(seqlen_offsets).expand(x.shape[0])
        positions = starts[:, None] + torch.arange(x.shape[1])
    else:
        lengths = cu_seqlens.diff().tolist()
        starts = torch.as_tensor(seqlen_offsets).expand(len(lengths)).tolist()
        positions = torch.cat([start + torch.arange(n) for start, n in zip(starts, lengths)])[None]
    cos, sin = cos[positions][:, :, None], sin[positions][:, :, None]
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def linear_attention(q, k, v, initial_state=None, output_final_state=False, normalize=False):
    """With `normalize` the state is a pair: what is written, and the sum of keys [B, 1, H, K]."""
    h, keys = initial_state if normalize and initial_state is not None else (initial_state, None)
    y, h = gla(q, k, v, torch.zeros_like(k), initial_state=h, output_final_state=True)
    if normalize:
        sums = k.cumsum(1) if keys is None else k.cumsum(1) + keys
        y = y / ((q * sums).sum(-1, keepdim=True) / q.shape[-1] ** 0.5 + 1e-10)
        h = (h, sums[:, -1:])
    return y, h if output_final_state else None


_REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "fla.modules.norm.layernorm.rms_norm": rms_norm,
    "fla.modules.norm.layernorm.layer_norm": norm,
    "fla.modules.norm.layernorm.group_norm": norm,
    "fla.modules.norm.fused_norm_gate.rms_norm_gated": rms_norm_gated,
    "fla.modules.norm.layernorm_gated.rmsnorm_fn": grouped_norm_and_gate,
    "fla.modules.mlp.swiglu": swiglu,
    "fla.modules.mlp.swiglu_linear": swiglu_linear,
    "fla.modules.activations.ops.swish_fwd": swish_fwd,
    "fla.modules.activations.ops.swish_bwd": swish_bwd,
    "fla.modules.activations.ops.sigmoid_fwd": sigmoid_fwd,
    "fla.modules.activations.ops.sigmoid_bwd": sigmoid_bwd,
    "fla.modules.activations.ops.sqrelu_fwd": sqrelu_fwd,
    "fla.modules.activations.ops.sqrelu_bwd": sqrelu_bwd,
    "fla.layers.gla.chunk_gla": _packed(gla),
    "fla.layers.gla.fused_recurrent_gla": _packed(gla),
    "fla.layers.hgrn2.chunk_gla": _packed(gla),
    "fla.layers.hgrn2.fused_recurrent_gla": _packed(gla),
    "fla.layers.hgrn2.swish": F.silu,
    "fla.layers.hgrn2.rms_norm_linear": rms_norm_linear,
    "fla.layers.rwkv6.token_shift": token_shift,
    "fla.models.rwkv6.modeling_rwkv6.token_shift": token_shift,
    "fla.layers.rwkv6.chunk_rwkv6": _packed(rwkv6),
    "fla.layers.rwkv6.fused_recurrent_rwkv6": _packed(rwkv6),
    "fla.layers.rwkv7.token_shift": token_shift,
    "fla.models.rwkv7.modeling_rwkv7.token_shift": token_shift,
    "fla.layers.rwkv7.chunk_rwkv7": _packed(rwkv7),
    "fla.layers.rwkv7.fused_mul_recurrent_rwkv7": _packed(rwkv7_step),
    "fla.layers.rwkv7.fused_addcmul_rwkv7": six_mixtures,
    "fla.layers.rwkv7.fused_k_rwkv7": scaled_keys,
    "fla.layers.rwkv7.gate_output_correction": corrected_and_gated,
    "fla.layers.rwkv7.l2_norm": l2_norm,
    "fla.layers.gated_deltanet.causal_conv1d": convolve,
    "fla.layers.gated_deltanet.chunk_gated_delta_rule": _packed(delta_rule),
    "fla.layers.gated_deltanet.fused_recurrent_gated_delta_rule": _packed(delta_rule),
    "fla.layers.delta_net.chunk_delta_rule": _packed(delta_rule),
    "fla.layers.delta_net.fused_recurrent_delta_rule": _packed(delta_rule),
    "fla.layers.kda.chunk_kda": _packed(delta_rule),
    "fla.layers.kda.fused_recurrent_kda": _packed(delta_rule),
    "fla.layers.hgrn.swiglu": swiglu,
    "fla.layers.hgrn.chunk_hgrn": _packed(hgrn),
    "fla.layers.hgrn.fused_recurrent_hgrn": _packed(hgrn),
    "fla.layers.multiscale_retention.chunk_retention": _packed(retention),
    "fla.layers.multiscale_retention.fused_recurrent_retention": _packed(retention),
    "fla.modules.rotary.ops.rotary_embedding": rotary_embedding,
    "fla.layers.linear_attn.fused_chunk_linear_attn": _packed(linear_attention),
    "fla.layers.linear_attn.chunk_linear_attn": _packed(linear_attention),
    "fla.layers.linear_attn.fused_recurrent_linear_attn": _packed(linear_attention),
}
