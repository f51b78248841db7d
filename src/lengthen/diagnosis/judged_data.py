"""What a diagnosis judges by: sequences from whatever was given, refused where the model cannot read them."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from lengthen.data import Corpus, HeldOutSequences, load_corpus
from lengthen.diagnosis.sequence_losses import COLUMNS
from lengthen.errors import InputError
from lengthen.models import vocabulary_size
from lengthen.streaming import Tokens


def judged_sequences(model: nn.Module, data: Any, length: int, n: int, tokenizer: Any, join: bool, seed: int) -> Tokens:
    """`n` sequences of `length` positions and the target of the last.

    data: what load_corpus takes, a Corpus, or sequences [n, at least length + 1, ...]. Raises InputError for data that
    are too short or that the model does not read.
    """
    size = vocabulary_size(model)
    if isinstance(data, np.ndarray | HeldOutSequences) and len(data.shape) >= 2:
        if data.shape[1] < length + 1:
            raise InputError(f"The sequences have {data.shape[1]} positions, but {length + 1} are needed.")
        found = data.first(length) if isinstance(data, HeldOutSequences) else data[:, : length + 1]
        if size is not None:
            _require_tokens(found, size)
        return found
    corpus = data if isinstance(data, Corpus) else load_corpus(data, tokenizer)
    if size is not None:
        corpus.require_vocabulary(size)
    return HeldOutSequences(corpus, length=length, count=n, seed=seed, join=join)


def _require_tokens(data: Any, size: int) -> None:
    """Raises InputError unless the sequences hold ids below `size`, whole numbers."""
    first = data[:, :1]
    if first.ndim > 2 or first.dtype.kind not in "iu":
        raise InputError(
            f"The data are {first.dtype} of shape {tuple(data.shape)}, but a language model reads token ids [sequences, positions]."
        )
    end = data.shape[1] - (getattr(data, "targets", None) is not None)
    blocks = (data[:, low : min(low + COLUMNS, end)] for low in range(0, end, COLUMNS))
    edges = [(block.min(), block.max()) for block in blocks if block.size]
    low, high = min((low for low, _ in edges), default=0), max((high for _, high in edges), default=0)
    if not 0 <= low <= high < size:
        raise InputError(f"The tokens run from {low} to {high}, but the model has ids 0 to {size - 1}.")
