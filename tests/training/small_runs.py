"""What tests of short runs share: settings, all weights as one tensor, what the log says of the learning rate."""

import json

import torch

FAST = {"train_context": 32, "steps": 4, "rows": 8, "learning_rate": 1e-2}


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def learning_rates(folder):
    """Of every step that was logged, by its number."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["learning_rate"] for line in lines if "learning_rate" in line}
