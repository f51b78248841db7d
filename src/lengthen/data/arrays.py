"""Corpora from numpy arrays: token ids, or frames of features with or without targets of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lengthen.data.corpus import Corpus, CorpusWriter, token_dtype
from lengthen.errors import InputError

IGNORED = -100


def array_corpus(
    arrays: Sequence[NDArray[Any]],
    targets: Sequence[NDArray[Any]] | None,
    vocabulary_size: int | None,
    max_tokens: int | None,
) -> Corpus:
    """The corpus of a list of arrays, one a document.

    arrays: integers [length], or floats [length, ...features] with the same features throughout.
    targets: for each array what its positions should give: integers [length] (-100: nothing) or floats
        [length, ...].
    vocabulary_size: for integers; the largest id plus one where None.
    """
    if all(array.ndim == 1 and array.dtype.kind in "iu" for array in arrays):
        writer = _token_writer(arrays, vocabulary_size, max_tokens)
    else:
        writer = _frame_writer(arrays, max_tokens)
    for array in arrays:
        if not writer.add([array]):
            break
    corpus = writer.finish("The list of arrays")
    return corpus if targets is None else _with_targets(corpus, arrays, targets)


def _token_writer(arrays: Sequence[NDArray[Any]], vocabulary_size: int | None, max_tokens: int | None) -> CorpusWriter:
    bounds = [(int(array.min(initial=0)), int(array.max(initial=0)) if array.size else 0) for array in arrays]
    size = vocabulary_size if vocabulary_size is not None else max(high for _, high in bounds) + 1
    for number, (low, high) in enumerate(bounds):
        if low < 0 or high >= size:
            wrong = low if low < 0 else high
            raise InputError(
                f"Array {number} holds the token id {wrong}, outside a vocabulary of {size} ids; "
                "give ids from 0 up and the vocabulary they belong to."
            )
    return CorpusWriter(token_dtype(size), size, limit=max_tokens)


def _frame_writer(arrays: Sequence[NDArray[Any]], max_tokens: int | None) -> CorpusWriter:
    for number, array in enumerate(arrays):
        if array.dtype.kind != "f" or array.ndim < 2 or array.shape[1:] != arrays[0].shape[1:]:
            raise InputError(
                f"Array {number} has shape {array.shape} and type {array.dtype}; give integers [length], or floats "
                "[length, features] with the same features in every array."
            )
        if not np.isfinite(array).all():
            position = int(np.argwhere(~np.isfinite(array))[0, 0])
            raise InputError(f"Array {number} holds a value that is not finite at position {position}; remove it.")
    return CorpusWriter("<f4", None, features=arrays[0].shape[1:], limit=max_tokens)


def _with_targets(corpus: Corpus, arrays: Sequence[NDArray[Any]], targets: Sequence[NDArray[Any]]) -> Corpus:
    """The corpus with targets joined, checked one by one against the arrays, cut where the corpus was cut."""
    if len(targets) != len(arrays):
        raise InputError(f"There are {len(arrays)} arrays but {len(targets)} targets; give one target an array.")
    for number, (array, target) in enumerate(zip(arrays, targets)):
        like_first = target.dtype.kind == targets[0].dtype.kind and target.shape[1:] == targets[0].shape[1:]
        whole = target.ndim == 1 and target.dtype.kind in "iu"
        if len(target) != len(array) or not like_first or not (whole or target.dtype.kind == "f"):
            raise InputError(
                f"Target {number} has shape {target.shape} and type {target.dtype} against {len(array)} positions; "
                "give integers [length] or floats [length, ...], all alike."
            )
        if whole and bool(((target < 0) & (target != IGNORED)).any()):
            raise InputError(f"Target {number} is negative somewhere; give values from 0 up, or -100 for no target.")
        if not whole and not np.isfinite(target).all():
            raise InputError(f"Target {number} holds a value that is not finite; remove it.")
    dtype = np.int64 if targets[0].dtype.kind in "iu" else np.float32
    joined = np.concatenate(targets)[: len(corpus.values)].astype(dtype)
    digest = hashlib.sha256(corpus.content.encode())
    digest.update(f"{joined.dtype.str}{joined.shape[1:]}".encode())
    digest.update(joined.tobytes())
    return replace(corpus, targets=joined, content=digest.hexdigest())
