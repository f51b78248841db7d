"""Text in parts that share no position: one to fit methods on, one to choose by, one to report by."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lengthen.data import Corpus, HeldOutSequences
from lengthen.errors import InputError
from lengthen.training_free.fitting import Calibration, Method

SHARES = (0.25, 0.25, 0.5)
"""Of one text, to calibrate, select and report."""
WINDOWS, LONG_SEQUENCES, SELECT_SEQUENCES = 32, 2, 4
"""At most: windows of T0 and sequences of L that methods are fitted on, and sequences that they are chosen by."""


@dataclass(frozen=True)
class Splits:
    """The three texts. Where a text to train on is given apart, calibration text comes from there."""

    calibrate: Corpus
    select: Corpus
    report: Corpus

    @classmethod
    def of(cls, corpus: Corpus, training: Corpus | None = None) -> Splits:
        """The parts of a corpus, or of one whose calibration text is another: the text to train on.

        Raises InputError where the two are the same text.
        """
        if training is None:
            return cls(*parts(corpus, SHARES))
        if training.content == corpus.content:
            raise InputError("The text to train on is the one to judge by; give another, or leave it out.")
        select, report = parts(corpus, (SHARES[0], 1 - SHARES[0]))
        return cls(training, select, report)

    def to_select_by(self, length: int, seed: int) -> HeldOutSequences:
        """Sequences that methods' settings are chosen by, at most SELECT_SEQUENCES of L positions."""
        return _sequences(self.select, length, SELECT_SEQUENCES, seed)


def parts(corpus: Corpus, shares: Sequence[float]) -> list[Corpus]:
    """The corpus cut by position into parts of these shares, which add up to 1; a document that is cut is two."""
    start, end = int(corpus.boundaries[0]), int(corpus.boundaries[-1])
    cuts = [start + round((end - start) * sum(shares[:i])) for i in range(len(shares) + 1)]
    found = []
    for low, high in itertools.pairwise(cuts):
        inside = corpus.boundaries[(corpus.boundaries > low) & (corpus.boundaries < high)]
        found.append(replace(corpus, boundaries=np.array([low, *inside, high], dtype=np.int64)))
    return found


def calibration_from(corpus: Corpus, method: Method, *, train_context: int, length: int, seed: int) -> Calibration:
    """What this method may be fitted on: windows of T0, and sequences of L where it asks for them, across documents."""

    def rows(length: int, most: int) -> Tensor:
        return torch.as_tensor(_sequences(corpus, length, most, seed)[:, : length + 1])

    windows = rows(train_context, WINDOWS) if {"calibration", "gradients"} & method.needs else None
    long = rows(length, LONG_SEQUENCES) if "long-calibration" in method.needs else None
    return Calibration(train_context, length, windows, long, seed, corpus.fingerprint)


def _sequences(corpus: Corpus, length: int, most: int, seed: int) -> HeldOutSequences:
    """As many sequences as fit side by side, at most `most` and at least one; documents are laid end to end."""
    tokens = int(corpus.boundaries[-1] - corpus.boundaries[0])
    count = max(1, min(most, tokens // (length + 1)))
    return HeldOutSequences(corpus, length=length, count=count, seed=seed, join=True)
