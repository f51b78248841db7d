"""What a diagnosis judges by: sequences from whatever was given, refused where the model cannot read them."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from lengthen.data import Corpus, HeldOutSequences, load_corpus
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
        if isinstance(data, HeldOutSequences):
            return data.first(length)
        if size is not None and (data.ndim > 2 or data.dtype.kind not in "iu"):
            raise InputError(
                f"The data are {data.dtype} of shape {data.shape}, but a language model reads token ids [sequences, positions]."
            )
        if size is not None and data.size and not 0 <= data.min() <= data.max() < size:
            raise InputError(
                f"The tokens run from {data.min()} to {data.max()}, but the model has ids 0 to {size - 1}."
            )
        return data[:, : length + 1]
    corpus = data if isinstance(data, Corpus) else load_corpus(data, tokenizer)
    if size is not None:
        corpus.require_vocabulary(size)
    return HeldOutSequences(corpus, length=length, count=n, seed=seed, join=join)
