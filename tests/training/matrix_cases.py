"""The data and settings that every way of training is compared on: documents of uneven lengths, a few large steps."""

import numpy as np

from lengthen.data import load_corpus
from tests.conftest import tiny_mamba2

RUN = {"train_context": 16, "rows": 8, "steps": 4, "learning_rate": 1e-2}


def corpus():
    """Twelve documents whose lengths are no multiples of T, so that lanes end in padded windows at different times."""
    generator = np.random.default_rng(0)
    lengths = (35, 90, 70, 100, 95, 33, 77, 64, 66, 80, 41, 58)
    return load_corpus([generator.integers(0, 256, n) for n in lengths], vocabulary_size=256)


def model():
    """A Mamba-2 whose state weighs in its loss: large weights, decays that keep the past."""
    made = tiny_mamba2(initializer_range=0.3)
    for name, parameter in made.named_parameters():
        if name.endswith("A_log"):
            parameter.data.fill_(-3.0)
    return made
