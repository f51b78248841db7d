"""Checkpoints of mamba_ssm's language models, written and run from their published definition, without lengthen.

The parameters and their shapes are those of mamba_ssm's modules; the forward is the recurrence as the papers state it
(Mamba: arXiv 2312.00752, algorithm 2; Mamba-2: arXiv 2405.21060), one position after another in float64.

D model width, E inner width, N state size, R rank of the step, W convolution width, G groups, H heads, P head size.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]

# The published checkpoints' config.json have these two forms.
FIRST: dict[str, Any] = {
    "d_model": 24,
    "n_layer": 2,
    "vocab_size": 250,
    "ssm_cfg": {},
    "rms_norm": True,
    "residual_in_fp32": True,
    "fused_add_norm": True,
    "pad_vocab_size_multiple": 8,
}
SECOND: dict[str, Any] = {
    **FIRST,
    "d_intermediate": 0,
    "ssm_cfg": {"layer": "Mamba2", "headdim": 8, "d_state": 6, "chunk_size": 16},
    "attn_layer_idx": [],
    "attn_cfg": {},
    "tie_embeddings": True,
}


def config(base: dict[str, Any], ssm: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    """A config.json with some settings changed."""
    return {**base, **settings, "ssm_cfg": {**base["ssm_cfg"], **(ssm or {})}}


def random_weights(config: dict[str, Any], dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensors:
    """Every parameter of the model, random, under mamba_ssm's names; a tied head shares memory with the embedding."""
    ssm, width = config["ssm_cfg"], config["d_model"]
    multiple = config["pad_vocab_size_multiple"]
    vocabulary = math.ceil(config["vocab_size"] / multiple) * multiple
    inner, window = ssm.get("expand", 2) * width, ssm.get("d_conv", 4)
    if ssm.get("layer", "Mamba1") == "Mamba1":
        state, rank = ssm.get("d_state", 16), ssm.get("dt_rank", math.ceil(width / 16))
        convolved, projected = inner, 2 * inner
        shapes = {
            "x_proj.weight": (rank + 2 * state, inner),
            "dt_proj.weight": (inner, rank),
            "dt_proj.bias": (inner,),
            "A_log": (inner, state),
            "D": (inner,),
        }
    else:
        state, groups = ssm["d_state"], ssm.get("ngroups", 1)
        heads = inner // ssm["headdim"]
        convolved = inner + 2 * groups * state
        projected = inner + convolved + heads
        shapes = {"dt_bias": (heads,), "A_log": (heads,), "D": (heads,), "norm.weight": (inner,)}
    shapes |= {"in_proj.weight": (projected, width), "out_proj.weight": (width, inner)}
    shapes |= {"conv1d.weight": (convolved, 1, window)}
    if ssm.get("conv_bias", True):
        shapes["conv1d.bias"] = (convolved,)
    if ssm.get("bias", False):
        shapes |= {"in_proj.bias": (projected,), "out_proj.bias": (width,)}
    names = {"backbone.embedding.weight": (vocabulary, width), "backbone.norm_f.weight": (width,)}
    for i in range(config["n_layer"]):
        names[f"backbone.layers.{i}.norm.weight"] = (width,)
        names |= {f"backbone.layers.{i}.mixer.{name}": shape for name, shape in shapes.items()}
    generator = torch.Generator().manual_seed(seed)
    weights = {name: (0.5 * torch.randn(shape, generator=generator)).to(dtype) for name, shape in names.items()}
    embedding = weights["backbone.embedding.weight"]
    tied = config.get("tie_embeddings", True)
    weights["lm_head.weight"] = embedding if tied else torch.randn(embedding.shape, generator=generator).to(dtype)
    return weights


def write(directory: Path, config: dict[str, Any], weights: Tensors, layout: str = "bin") -> Path:
    """config.json and the weights: "bin", "safetensors" (a tied head left out) or "shards" of safetensors."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    if layout == "bin":
        torch.save(weights, directory / "pytorch_model.bin")
        return directory
    tied = config.get("tie_embeddings", True)
    weights = {name: tensor for name, tensor in weights.items() if not (tied and name == "lm_head.weight")}
    if layout == "safetensors":
        save_file(weights, directory / "model.safetensors")
        return directory
    names = sorted(weights)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: weights[name] for name in part}, directory / file)
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def stored(directory: Path) -> Tensors:
    """The tensors of a directory's one file, as they are."""
    if (directory / "pytorch_model.bin").exists():
        return torch.load(directory / "pytorch_model.bin", weights_only=True)
    return load_file(directory / "model.safetensors")


def restated_logits(directory: Path, tokens: Tensor) -> Tensor:
    """mamba_ssm's logits [T, vocabulary] for tokens [T], in float64."""
    config = json.loads((directory / "config.json").read_text())
    weights = {name: tensor.double() for name, tensor in stored(directory).items()}
    ssm = config["ssm_cfg"]
    mixer = _mamba1 if ssm.get("layer", "Mamba1") == "Mamba1" else _mamba2
    residual = weights["backbone.embedding.weight"][tokens]
    for i in range(config["n_layer"]):
        prefix = f"backbone.layers.{i}.mixer."
        own = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
        x = _rms(residual) * weights[f"backbone.layers.{i}.norm.weight"]
        projected = F.linear(x, own["in_proj.weight"], own.get("in_proj.bias"))
        y = mixer(projected, own, ssm)
        residual = residual + F.linear(y, own["out_proj.weight"], own.get("out_proj.bias"))
    hidden = _rms(residual) * weights["backbone.norm_f.weight"]
    return hidden @ weights["lm_head.weight"].T


def _rms(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def _convolved(x: Tensor, own: Tensors) -> Tensor:
    """silu of the causal convolution of x [T, channels], from its sum."""
    kernel = own["conv1d.weight"].squeeze(1)
    window = kernel.shape[1]
    padded = torch.cat([x.new_zeros(window - 1, x.shape[1]), x])
    summed = sum(padded[k : k + len(x)] * kernel[:, k] for k in range(window))
    return F.silu(summed + own.get("conv1d.bias", torch.zeros(()).double()))


def _mamba1(projected: Tensor, own: Tensors, ssm: dict[str, Any]) -> Tensor:
    x, gate = projected.chunk(2, dim=-1)
    x = _convolved(x, own)
    decay = -torch.exp(own["A_log"])
    inner, state = decay.shape
    rank = own["dt_proj.weight"].shape[1]
    low_rank, write, read = (x @ own["x_proj.weight"].T).split([rank, state, state], dim=-1)
    step = F.softplus(low_rank @ own["dt_proj.weight"].T + own["dt_proj.bias"])
    h, y = x.new_zeros(inner, state), torch.empty_like(x)
    for t in range(len(x)):
        h = torch.exp(step[t][:, None] * decay) * h + (step[t] * x[t])[:, None] * write[t]
        y[t] = h @ read[t] + own["D"] * x[t]
    return y * F.silu(gate)


def _mamba2(projected: Tensor, own: Tensors, ssm: dict[str, Any]) -> Tensor:
    heads, head, state, groups = len(own["A_log"]), ssm["headdim"], ssm["d_state"], ssm.get("ngroups", 1)
    inner, keys = heads * head, groups * state
    gate, mixed, step = projected.split([inner, inner + 2 * keys, heads], dim=-1)
    x, write, read = _convolved(mixed, own).split([inner, keys, keys], dim=-1)
    low, high = ssm.get("dt_limit", (0.0, math.inf))
    step = F.softplus(step + own["dt_bias"]).clamp(low, high)
    decay = torch.exp(step * -torch.exp(own["A_log"]))
    group_of = [h // (heads // groups) for h in range(heads)]
    h, y = x.new_zeros(heads, head, state), x.new_empty(len(x), heads, head)
    for t in range(len(x)):
        value = x[t].view(heads, head)
        b, c = write[t].view(groups, state)[group_of], read[t].view(groups, state)[group_of]
        h = decay[t][:, None, None] * h + (step[t][:, None] * value)[:, :, None] * b[:, None, :]
        y[t] = (h * c[:, None, :]).sum(-1) + own["D"][:, None] * value
    gated = (y.view(len(x), inner) * F.silu(gate)).view(len(x), groups, inner // groups)
    return _rms(gated).view(len(x), inner) * own["norm.weight"]
