"""Random text of letters, and the training context and length that it is judged at."""

import numpy as np

T, L = 8, 32


def text(length=6000, seed=0):
    return "".join(map(chr, np.random.default_rng(seed).integers(97, 123, length)))
