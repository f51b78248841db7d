"""Tiny random models of fla's classes that lengthen runs; fla itself runs none of them on a CPU."""

from __future__ import annotations

from typing import Any

from lengthen.models.tiny_models import TinyModel

_COMMON: dict[str, Any] = {"num_hidden_layers": 2, "fuse_cross_entropy": False}
_MIXED: dict[str, Any] = {"intermediate_size": 64}


def _fla(name: str, family: str, **options: Any) -> TinyModel:
    mixed = {} if name.startswith("Mamba") else _MIXED
    return TinyModel(name, family, f"{name}Config", _COMMON | mixed | options, library="fla.models")


FLA_TINY_MODELS: tuple[TinyModel, ...] = (
    _fla("Mamba", "mamba1", state_size=8),
    _fla("Mamba2", "mamba2", head_dim=16, n_groups=2, state_size=8, chunk_size=8),
    _fla("GLA", "gla", num_heads=4, expand_k=0.5, expand_v=1.0),
    _fla("RWKV6", "rwkv6", num_heads=4, proj_low_rank_dim=8, gate_low_rank_dim=8),
    _fla("RWKV7", "rwkv7", head_dim=8, decay_low_rank_dim=8, gate_low_rank_dim=8, a_low_rank_dim=8, v_low_rank_dim=8),
    _fla("GatedDeltaNet", "delta_rule", num_heads=2, head_dim=8, expand_v=2),
    _fla("DeltaNet", "delta_rule", num_heads=4),
    _fla("KDA", "delta_rule", num_heads=2, head_dim=8),
    _fla("HGRN", "hgrn"),
    _fla("HGRN2", "hgrn", num_heads=4, expand_ratio=8),
    _fla("RetNet", "retnet", num_heads=4),
    _fla("LinearAttention", "retnet", num_heads=4),
)
