"""Small modules with torch's own recurrent layers, for tests: frames [B, T, 5] -> predictions [B, T, 3]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

KINDS: dict[str, dict[str, Any]] = {
    "LSTM": {"kind": "LSTM"},
    "LSTM, two layers, projection, dropout": {"kind": "LSTM", "num_layers": 2, "proj_size": 4, "dropout": 0.3},
    "LSTM, positions first, no bias": {"kind": "LSTM", "batch_first": False, "bias": False},
    "GRU": {"kind": "GRU"},
    "GRU, positions first, three layers": {"kind": "GRU", "batch_first": False, "num_layers": 3},
    "RNN": {"kind": "RNN"},
    "RNN, relu, positions first, two layers": {
        "kind": "RNN",
        "nonlinearity": "relu",
        "batch_first": False,
        "num_layers": 2,
    },
}


class Regressor(nn.Module):
    """A recurrent layer between two linear ones."""

    def __init__(self, kind: str = "GRU", seed: int = 0, batch_first: bool = True, **options: Any) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.before = nn.Linear(5, 6)
            self.layer = getattr(nn, kind)(6, 12, batch_first=batch_first, **options)
            self.after = nn.Linear(options.get("proj_size") or 12, 3)

    def hidden(self, frames: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """(output [B, T, H], what the layer ends with), from hx."""
        x = self.before(frames)
        if self.layer.batch_first:
            return self.layer(x, hx)
        y, end = self.layer(x.transpose(0, 1), hx)
        return y.transpose(0, 1), end

    def forward(self, frames: Tensor) -> Tensor:
        return self.after(self.hidden(frames)[0])


def frames(rows: int, positions: int, seed: int = 0) -> Tensor:
    """Random frames [rows, positions, 5]."""
    return torch.randn(rows, positions, 5, generator=torch.Generator().manual_seed(seed))


class Using(nn.Module):
    """A GRU, used as a function says."""

    def __init__(self, use: Any, **options: Any) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 5, **{"batch_first": True, **options})
        self.use = use

    def forward(self, x: Tensor) -> Any:
        return self.use(self.gru, x)
