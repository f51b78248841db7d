"""A small state of each kind of tensor, rows of lanes, and final states of a given size, for the interventions' tests."""

import torch

from lengthen import RecurrentState, Rows
from lengthen.state import TensorSpec

SPECS = {
    "l": {
        "h": TensorSpec("recurrent", head_axis=1),
        "m": TensorSpec("recurrent", noise=False),
        "w": TensorSpec("window"),
    }
}


def zero(rows):
    return RecurrentState(
        {"l": {"h": torch.zeros(rows, 2, 30, 40), "m": torch.zeros(rows, 4), "w": torch.zeros(rows, 3, 2)}}, SPECS, "t"
    )


def filled(values):
    """A state whose row i holds values[i] everywhere."""
    v = torch.as_tensor(values, dtype=torch.float32)
    return zero(len(v)).map(lambda t, _: t + v.view(-1, *[1] * (t.dim() - 1)))


def rows(lanes, step=0, total=None, start=None, shuffled=True):
    lane = torch.as_tensor(lanes)
    begins = torch.zeros(len(lane), dtype=torch.bool) if start is None else torch.as_tensor(start)
    return Rows(lane=lane, start=begins, step=step, lanes=total or len(lane), shuffled=shuffled, tokens=5)


def h(state):
    return state.tensors["l"]["h"][:, 0, 0, 0]


def final_states(step, n=16):
    g = torch.Generator().manual_seed(step)
    base = torch.randn(n, 2, 30, 40, generator=g) * torch.tensor([0.5, 2.0]).view(1, 2, 1, 1) + torch.tensor(
        [1.0, -3.0]
    ).view(1, 2, 1, 1)
    return zero(n).map(lambda t, spec: base if t.dim() == 4 else t)
