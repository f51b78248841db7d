"""Recurrences that `benchmark` times against the same ones of other libraries.

Dims: T positions, H heads, K key dim, V value dim, D channels, N state per channel; batch 1.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.kernels import gated_delta_rule, gated_linear_attention, selective_scan, ssd
from lengthen.studies.benchmark_pairs import Case, Step, fla_naive, require, steps


def selective_scan_pair(case: Case) -> tuple[Step, Step]:
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    T, D, N = case.length, 1536, 16
    inputs = [
        torch.randn(1, T, D),
        torch.randn(1, T, D) - 3,
        -torch.arange(1.0, N + 1).repeat(D, 1),
        torch.randn(1, T, N),
        torch.randn(1, T, N),
        torch.ones(D),
        torch.randn(1, T, D),
        torch.zeros(D),
    ]

    def ours(
        x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, skip: Tensor, gate: Tensor, bias: Tensor
    ) -> Tensor:
        return selective_scan(x, dt, A, B, C, skip=skip, gate=gate, dt_bias=bias, dt_softplus=True)[0]

    def peer(
        x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, skip: Tensor, gate: Tensor, bias: Tensor
    ) -> Tensor:
        x, dt, B, C, gate = (tensor.mT for tensor in (x, dt, B, C, gate))
        y: Tensor = mamba_selective_scan(
            x, dt, A, B, C, D=skip, z=gate, delta_bias=bias, delta_softplus=True, use_mambapy="mambapy" in case.peer
        )
        return y.mT

    def mambapy(
        x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, skip: Tensor, gate: Tensor, bias: Tensor
    ) -> Tensor:
        from mambapy.mamba import MambaBlock

        y: Tensor = MambaBlock.selective_scan(None, x, F.softplus(dt + bias), A, B, C, skip)
        return y * F.silu(gate)

    if "mambapy" in case.peer:
        require("mambapy")
    return steps(case, ours, mambapy if case.peer == "mambapy" else peer, inputs)


def ssd_pair(case: Case) -> tuple[Step, Step]:
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    T, H, K, V = case.length, 24, 128, 64
    dt = 0.1 * torch.rand(1, T, H) + 1e-3
    inputs = [
        torch.randn(1, T, H, V),
        dt,
        -torch.arange(1.0, H + 1),
        torch.randn(1, T, 1, K),
        torch.randn(1, T, 1, K),
        torch.ones(H),
    ]

    def ours(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, skip: Tensor) -> Tensor:
        return ssd(C, B, x, dt * A, dt, skip=skip)[0]

    def peer(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, skip: Tensor) -> Tensor:
        return mamba2_chunk_scan(x, dt, A, B, C, chunk_size=256, D=skip)

    return steps(case, ours, peer, inputs)


def gated_linear_attention_pair(case: Case) -> tuple[Step, Step]:
    peer_function = fla_naive("gla").naive_recurrent_gla
    T, H, K, V = case.length, 12, 64, 64
    inputs = [
        torch.randn(1, T, H, K),
        torch.randn(1, T, H, K),
        torch.randn(1, T, H, V),
        F.logsigmoid(torch.randn(1, T, H, K)) / 16,
    ]
    scale = 1 / math.sqrt(K)
    return steps(
        case,
        lambda q, k, v, g: gated_linear_attention(q * scale, k, v, g)[0],
        lambda q, k, v, g: peer_function(q, k, v, g)[0],
        inputs,
    )


def gated_delta_rule_pair(case: Case) -> tuple[Step, Step]:
    per_channel = "per channel" in case.shape
    if per_channel:
        peer_function = fla_naive("kda").naive_chunk_kda
    else:
        peer_function = fla_naive("gated_delta_rule").naive_chunk_gated_delta_rule
    T, H, K, V = case.length, 12, 64, 64
    inputs = [
        torch.randn(1, T, H, K),
        F.normalize(torch.randn(1, T, H, K), dim=-1),
        torch.randn(1, T, H, V),
        F.logsigmoid(torch.randn(1, T, H, K) if per_channel else torch.randn(1, T, H)) / 16,
        torch.rand(1, T, H),
    ]
    scale = 1 / math.sqrt(K)
    return steps(
        case,
        lambda q, k, v, g, beta: gated_delta_rule(q * scale, k, v, g, beta)[0],
        lambda q, k, v, g, beta: peer_function(q, k, v, g, beta)[0],
        inputs,
    )
