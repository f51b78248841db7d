"""How far apart two runs are: the error of tensors, states and gradients against those expected."""

from __future__ import annotations

import torch
from torch import Tensor

from lengthen.state import RecurrentState


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The larger of norm(a - r) / norm(r) and max|a - r| / max|r|; infinite if anything is not finite.

    0 where there are no entries: a convolution over one position has a window of none.
    """
    a, r = found.detach().double(), expected.detach().double()
    if a.numel() == r.numel() == 0:
        return 0.0
    if not torch.isfinite(a).all():
        return float("inf")
    d = a - r
    return float(max(d.norm() / r.norm().clamp_min(1e-30), d.abs().max() / r.abs().max().clamp_min(1e-30)))


def state_error(found: RecurrentState, expected: RecurrentState) -> float:
    """The largest relative_error() of a state's tensors."""
    return max(
        relative_error(t, expected.tensors[layer][name])
        for layer, named in found.tensors.items()
        for name, t in named.items()
    )


def gradient_error(found: list[Tensor], expected: list[Tensor]) -> float:
    """Error of all gradients together, as one vector; infinite if one is missing."""
    if any((a is None) != (b is None) for a, b in zip(found, expected)):
        return float("inf")
    flat = [torch.cat([g.double().flatten() for g in grads if g is not None]) for grads in (found, expected)]
    return relative_error(flat[0], flat[1])
