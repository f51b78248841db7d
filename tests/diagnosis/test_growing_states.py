"""States that grow without harm are seen, and not called a failure: an LSTM whose forget gate is held open."""

import numpy as np
import torch
from torch import nn

from lengthen import diagnose, wrap

T = 16


class Predictor(nn.Module):
    """Predicts the next frame of four channels; its cell adds up what comes in and forgets nothing."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 16, batch_first=True)
        self.head = nn.Linear(16, 4)
        with torch.no_grad():
            self.lstm.weight_ih_l0[16:32] = self.lstm.weight_hh_l0[16:32] = 0
            self.lstm.bias_ih_l0[16:32] = 20

    def forward(self, inputs):
        return self.head(self.lstm(inputs)[0])


def frames(rows, length, seed):
    """Channels that each keep nine tenths of their last value."""
    noise = np.random.default_rng(seed).normal(size=(rows, length, 4)).astype(np.float32)
    for t in range(1, length):
        noise[:, t] += 0.9 * noise[:, t - 1]
    return noise


def test_a_cell_that_grows_without_harm_is_no_failure():
    torch.manual_seed(0)
    model = wrap(Predictor())
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    windows = torch.as_tensor(frames(64, 40 * (T + 1), seed=1)).view(-1, T + 1, 4)
    for step in range(800):
        part = windows[torch.arange(64) + 64 * (step % 40)]
        loss = (model(part[:, :-1]).predictions - part[:, 1:]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        model.lstm.weight_ih_l0.grad[16:32] = 0
        model.lstm.weight_hh_l0.grad[16:32] = 0
        optimiser.step()
    found = diagnose(model, frames(16, 64 * T + 1, seed=2), train_context=T)
    cells = [state.norm for state in found.states if state.tensor == "cell"]
    far = [head for head in found.drift.heads if head.tensor == "cell" and head.position == 64 * T]
    print(
        found.verdict, found.in_context, [round(c, 1) for c in cells], [h.distance for h in far], found.recommendation
    )
    assert cells[-1] > 3 * cells[0] and all(head.outside for head in far)
    assert found.fails is False and found.recommendation.rule == "no_failure" and found.remembrance is None
