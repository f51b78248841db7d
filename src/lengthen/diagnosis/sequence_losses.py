"""Losses sequence by sequence, with a fingerprint of the sequences: what it takes to pair two models' losses.

n sequences, L positions.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from lengthen.diagnosis.position_loss import IntervalSums
from lengthen.results import SequenceLosses
from lengthen.streaming import Tokens

COLUMNS = 1 << 12
"""Positions that are read at once."""


def sequence_losses(tokens: Tokens, carried: IntervalSums, reset: IntervalSums, count: int) -> SequenceLosses:
    """Mean losses of tokens [n, L + 1] over the first `count` intervals, carried and with the state reset."""
    return SequenceLosses(
        carried=carried.means()[:, :count].tolist(),
        own_reset=reset.means()[:, :count].tolist(),
        tokens=fingerprint(tokens),
        overlap=getattr(tokens, "overlap", None),
    )


def fingerprint(tokens: Tokens) -> str:
    """sha256 of tokens or frames [n, L + 1, ...] and of their targets: the same wherever they are read from."""
    digest = hashlib.sha256(repr(tuple(tokens.shape)).encode())
    own = getattr(tokens, "targets", None)
    for values in (tokens,) if own is None else (tokens, own):
        # The value after the last position is a target; where there are targets of their own nobody looks at it.
        for low in range(0, tokens.shape[1] - (own is not None), COLUMNS):
            high = min(low + COLUMNS, tokens.shape[1] - (own is not None))
            columns = torch.as_tensor(values[:, low:high]).cpu().numpy()
            kind = "<f4" if columns.dtype.kind == "f" else "<i8"
            digest.update(np.ascontiguousarray(columns, dtype=kind).tobytes())
    return digest.hexdigest()
