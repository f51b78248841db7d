"""Random numbers keyed on (seed, step, lane), so that no draw depends on how rows are batched or shared."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from lengthen.interventions.base import Rows
from lengthen.interventions.state_bank import as_lanes
from lengthen.state import RecurrentState, TensorSpec


def _key(seed: int, step: int, lane: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{step}/{lane}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def uniform(seed: int, step: int, lane: int) -> float:
    return _key(seed, step, lane) / 2**63


def standard_normal(rows: Rows, seed: int, zero: RecurrentState) -> dict[tuple[str, str], Tensor]:
    """Standard normal draws in the shape of every recurrent tensor: row by row, so that no draw depends on the others."""
    names = [
        (layer, name) for layer, named in zero.tensors.items() for name in named if is_noisy(zero.specs[layer][name])
    ]
    sizes = [zero.tensors[layer][name][0].numel() for layer, name in names]
    generator = torch.Generator(zero.device)
    drawn = []
    for lane in as_lanes(rows.lane):
        generator.manual_seed(_key(seed, rows.step, rows.origin + lane))
        dtype = zero.tensors[names[0][0]][names[0][1]].dtype
        drawn.append(torch.randn(sum(sizes), generator=generator, device=zero.device, dtype=dtype))
    parts = torch.stack(drawn).split(sizes, dim=1)
    return {(layer, name): part.view_as(zero.tensors[layer][name]) for (layer, name), part in zip(names, parts)}


def is_noisy(spec: TensorSpec) -> bool:
    return spec.kind == "recurrent" and spec.noise
