"""Which checks of the parity gate a Mamba-2 with a fault in its forward fails."""

import dataclasses

import torch

from lengthen import check
from lengthen.models import families
from tests.conftest import tiny_mamba2


def failed(monkeypatch, forward, dtype=torch.float32):
    """The names of the checks that fail where Mamba-2 layers run as forward(layer, x, state, marks)."""
    kind = dataclasses.replace(families.KINDS["mamba2"], forward=forward)
    monkeypatch.setitem(families.KINDS, "mamba2", kind)
    return {c.name for c in check(tiny_mamba2().to(dtype)).checks if not c.passed}
