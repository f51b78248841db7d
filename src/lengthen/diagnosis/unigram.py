"""What a prediction without any context would reach: the entropy of the tokens themselves."""

from __future__ import annotations

import numpy as np
import torch

from lengthen.diagnosis.sequence_losses import COLUMNS
from lengthen.streaming import Tokens


def unigram_loss(tokens: Tokens, length: int) -> float:
    """Mean loss in nats of predicting each of the targets among tokens [n, at least length + 1] by its frequency."""
    own = getattr(tokens, "targets", None)
    values, first = (tokens, 1) if own is None else (own, 0)
    counts = np.zeros(0, dtype=np.int64)
    for low in range(first, first + length, COLUMNS):
        columns = torch.as_tensor(values[:, low : min(low + COLUMNS, first + length)]).cpu().numpy()
        more = np.bincount(columns.ravel(), minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
