"""Small wrapped models of every family, and text for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lengthen import wrap
from tests.models.family_properties import builder

TEXT = torch.randint(3, 64, (2, 39), generator=torch.Generator().manual_seed(2))
IDS = TEXT[:, :-1]
CALIBRATION = torch.randint(3, 64, (3, 33), generator=torch.Generator().manual_seed(3))

GATED = [
    "Mamba",
    "Zamba",
    "Mamba2",
    "MiniMax",
    "RecurrentGemma",
    "xLSTM",
    "GLA",
    "RWKV6",
    "RWKV7",
    "RetNet",
    "HGRN",
    "HGRN2",
    "LinearAttention",
    "KDA",
    "DeltaNet",
]
"""Classes whose layers have both decays and gains."""
READ = ["Mamba2", "MiniMax", "GLA", "RWKV6", "HGRN2", "LinearAttention"]
"""Classes whose read of keys and values a hook may take over."""
EVERY = [*GATED, "Rwkv", "LSTM", "GRU"]


class Recurrent(nn.Module):
    """Embeddings, one of torch's own layers, and a head."""

    def __init__(self, layer: type) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(64, 16), layer(16, 16, batch_first=True), nn.Linear(16, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embed(ids))[0])


def small_model(name: str) -> Any:
    """The wrapped model of a class, random, the same each time."""
    if hasattr(nn, name):
        torch.manual_seed(0)
        return wrap(Recurrent(getattr(nn, name)).eval())
    return wrap(builder(name, {})())


def logits(output: Any) -> torch.Tensor:
    """What a wrapped model of either sort predicts, [B, T, V]."""
    return output.logits if hasattr(output, "logits") else output.predictions


def recurrent_tensors(state: Any) -> dict[tuple[str, str], torch.Tensor]:
    """The recurrent tensors of a state by layer and name."""
    return {
        (layer, name): t
        for layer, named in state.tensors.items()
        for name, t in named.items()
        if state.specs[layer][name].kind == "recurrent"
    }
