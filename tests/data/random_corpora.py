"""Random corpora for property tests: every token is its own position, so that a row tells where it comes from."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from lengthen.data import Batch, Corpus, load_corpus


def numbered(lengths: list[int]) -> Corpus:
    """Documents of the given lengths whose tokens count on through the corpus: token i of the corpus is i."""
    ends = np.cumsum(lengths)
    return load_corpus([np.arange(end - length, end) for length, end in zip(lengths, ends)])


@st.composite
def settings_of_windows(draw: st.DrawFn, documents: int = 8, length: int = 30) -> tuple[Corpus, int, int, int]:
    """(corpus, context, lanes, seed): at least one document fills a window, and there are no more lanes than usable
    documents. Contexts from 1, odd ones too; documents down to a single token."""
    lengths = draw(st.lists(st.integers(1, length), min_size=1, max_size=documents).filter(lambda v: max(v) > 1))
    context = draw(st.integers(1, max(lengths) - 1))
    lanes = draw(st.integers(1, sum(length > 1 for length in lengths)))
    return numbered(lengths), context, lanes, draw(st.integers(0, 2**32 - 1))


def assert_equal(one: Batch, other: Batch) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def joined(parts: list[Batch]) -> Batch:
    """The global batch of the ranks' batches; a rank without padding has no mask of its own."""
    masked = any("attention_mask" in part for part in parts)
    if masked:
        parts = [{"attention_mask": torch.ones_like(part["input_ids"]), **part} for part in parts]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
