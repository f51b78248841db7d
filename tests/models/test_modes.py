"""Modes a model is put into for a while."""

import torch

from lengthen.models.modes import HeldChoices


@torch.no_grad()
def test_choices_are_held():
    scores, others = torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[5.0, 1.0, 4.0]])
    held = HeldChoices()
    with held:
        first = torch.topk(scores, 2, dim=-1)
        rows = scores.topk(1, 0)
    with held:
        again = torch.topk(others, 2, dim=-1)
        assert torch.equal(others.topk(1, 0).values, others) and torch.equal(rows.indices, torch.zeros(1, 3).long())
    assert first.indices.tolist() == again.indices.tolist() == [[1, 2]] and again.values.tolist() == [[1, 4]]
    assert torch.topk(others, 2).indices.tolist() == [[0, 2]]
