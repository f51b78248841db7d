"""Whole layers and models that `benchmark` times, ours against the library's own on the same weights."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.kernels import linear_cross_entropy, rwkv7, selective_scan, short_conv
from lengthen.models import wrap
from lengthen.studies.benchmark_pairs import PRODUCTS, Case, Step, require, steps


def _model_steps(case: Case, loss: Callable[[Any, Tensor], Tensor], ours: Any, peer: Any) -> tuple[Step, Step]:
    tokens = torch.randint(0, 256, (1, case.length))
    products = case.mode.endswith(PRODUCTS)

    def ours_step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=products):
            value = loss(ours, tokens)
        value.backward()
        ours.zero_grad()

    def peer_step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=products):
            value = peer(tokens, labels=tokens, use_cache=False).loss
        value.backward()
        peer.zero_grad()

    return ours_step, peer_step


def mamba1_flops(positions: int) -> float:
    """Of the matrix products of one layer and its head, forward and backward."""
    return 3 * 2.0 * positions * (768 * 3072 + 1536 * 80 + 48 * 1536 + 1536 * 768 + 768 * 256)


def mamba1_layer(case: Case) -> tuple[Step, Step]:
    from transformers import MambaConfig, MambaForCausalLM

    require("mambapy")
    options: dict[str, Any] = {
        "hidden_size": 768,
        "num_hidden_layers": 1,
        "vocab_size": 256,
        "tie_word_embeddings": False,
    }
    model = MambaForCausalLM(MambaConfig(use_mambapy=True, **options)).train()

    def loss(model: Any, tokens: Tensor) -> Tensor:
        backbone, mixer = model.backbone, model.backbone.layers[0].mixer
        embedded = backbone.embeddings(tokens)
        x, gate = mixer.in_proj(backbone.layers[0].norm(embedded)).chunk(2, -1)
        x, _ = short_conv(x, mixer.conv1d.weight.squeeze(1), mixer.conv1d.bias, activation="silu")
        dt, B, C = mixer.x_proj(x).split([mixer.time_step_rank, mixer.ssm_state_size, mixer.ssm_state_size], -1)
        y, _ = selective_scan(
            x,
            F.linear(dt, mixer.dt_proj.weight),
            -torch.exp(mixer.A_log.float()),
            B,
            C,
            skip=mixer.D,
            gate=gate,
            dt_bias=mixer.dt_proj.bias,
            dt_softplus=True,
        )
        hidden = backbone.norm_f(embedded + mixer.out_proj(y))
        weight = model.lm_head.weight.to(hidden.dtype)
        return linear_cross_entropy(hidden[0, :-1], weight, tokens[0, 1:]) / (tokens.shape[1] - 1)

    return _model_steps(case, loss, model, model)


def _mamba2(case: Case, **options: Any) -> tuple[Step, Step]:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": 256,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 1,
        "tie_word_embeddings": False,
    }
    peer = Mamba2ForCausalLM(Mamba2Config(**settings, **options)).train()
    ours = Mamba2ForCausalLM(peer.config).train()
    ours.load_state_dict(peer.state_dict())
    wrap(ours)

    def loss(model: Any, tokens: Tensor) -> Tensor:
        value: Tensor = model(tokens, labels=tokens).loss
        return value

    return _model_steps(case, loss, ours, peer)


def mamba2_layer(case: Case) -> tuple[Step, Step]:
    return _mamba2(case, hidden_size=768, num_heads=24, num_hidden_layers=1)


def tiny_mamba2(case: Case) -> tuple[Step, Step]:
    return _mamba2(case, hidden_size=256, num_heads=8, num_hidden_layers=4)


def rwkv7_layer(case: Case) -> tuple[Step, Step]:
    """One time-mixing layer of RWKV-7 against the rwkv package's, which runs forwards only."""
    require("rwkv")
    os.environ.setdefault("RWKV_V7_ON", "1")  # else the package leaves its RWKV-7 out
    with contextlib.redirect_stdout(sys.stderr):  # it greets
        from rwkv.model import RWKV_x070_TMix_seq

    T, H, N, rank = case.length, 12, 64, 64
    C = H * N
    mixes = torch.rand(6, C)
    low_ranks = {name: (torch.randn(C), torch.randn(C, rank) / C, torch.randn(rank, C)) for name in "wav"}
    g1, g2 = torch.randn(C, rank) / C, torch.randn(rank, C)
    k_k, k_a, r_k, norm_weight, norm_bias = torch.randn(5, C)
    R, K, V, O = torch.randn(4, C, C) / C**0.5
    nothing, no_state = torch.zeros(C), torch.zeros(H, N, N)

    def peer(x: Tensor) -> Tensor:
        low = [tensor for name in "wav" for tensor in low_ranks[name]]
        weights = (*mixes, *low, g1, g2, k_k, k_a, r_k, R, K, V, O, norm_weight, norm_bias)
        output: Tensor = RWKV_x070_TMix_seq(0, H, N, x, nothing, nothing, no_state, *weights)[0]
        return output

    def ours(x: Tensor) -> Tensor:
        change = torch.cat([nothing.unsqueeze(0), x[:-1]]) - x
        xr, xw, xk, xv, xa, xg = (torch.addcmul(x, change, mix) for mix in mixes)
        r, k, v = xr @ R, xk @ K, xv @ V
        w0, w1, w2 = low_ranks["w"]
        a0, a1, a2 = low_ranks["a"]
        log_decay = -math.exp(-0.5) * torch.sigmoid(w0 + torch.tanh(xw @ w1) @ w2)
        rate = torch.sigmoid(a0 + (xa @ a1) @ a2)
        removed = F.normalize((k * k_k).view(T, H, N), dim=-1).view(T, C)
        k = k * (1 + (rate - 1) * k_a)
        read, _ = rwkv7(*(t.view(1, T, H, N) for t in (r, log_decay, k, v, -removed, removed * rate)))
        read = F.group_norm(read.view(T, C), H, norm_weight, norm_bias, eps=64e-5)
        bonus = (r * k * r_k).view(T, H, N).sum(-1, keepdim=True) * v.view(T, H, N)
        return ((read + bonus.view(T, C)) * (torch.sigmoid(xg @ g1) @ g2)) @ O

    return steps(case, ours, peer, [torch.randn(T, C)])
