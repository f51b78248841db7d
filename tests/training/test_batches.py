"""Micro-batches are the windows' own rows, each once and in order, from any step on."""

import numpy as np
import pytest
import torch

from lengthen.data import LaneWindows, ShuffledWindows, load_corpus
from lengthen.training.batches import MicroBatches

TOKENS = load_corpus([np.arange(n) for n in (61, 45, 130, 90)])
GENERATOR = np.random.default_rng(0)
FRAMES = [GENERATOR.standard_normal((n, 2)).astype(np.float32) for n in (21, 50)]


@pytest.mark.parametrize("kind", [ShuffledWindows, LaneWindows])
@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_micro_batches_put_together_are_the_steps_windows(kind, accumulation):
    windows = kind(TOKENS, context=8, lanes=4, seed=1)
    expected = [next(windows) for _ in range(9)][3:]
    pieces = list(MicroBatches(windows, accumulation, range(3, 9)))
    assert len(pieces) == 6 * accumulation
    for i, whole in enumerate(expected):
        own = pieces[i * accumulation : (i + 1) * accumulation]
        assert {len(value) for piece in own for value in piece.values()} == {4 // accumulation}
        for name, value in {**whole, "shift_labels": whole["labels"]}.items():
            assert torch.equal(torch.cat([piece[name] for piece in own]), value), name


def test_the_same_steps_come_again_wherever_the_windows_were_left():
    windows = ShuffledWindows(TOKENS, context=8, lanes=4)
    batches = MicroBatches(windows, 2, range(2, 5))
    first = [piece["input_ids"] for piece in batches]
    for _ in range(3):
        next(windows)
    assert all(torch.equal(a, piece["input_ids"]) for a, piece in zip(first, batches, strict=True))


def test_float_targets_go_apart_from_what_says_which_positions_count():
    """In the third step a lane of the shorter document is padded from position 4 on."""
    corpus = load_corpus(FRAMES, targets=[frames[:, :1] for frames in FRAMES])
    pieces = list(MicroBatches(LaneWindows(corpus, context=8, lanes=2), 1, range(3)))
    counted = [(piece["shift_labels"] != -100).sum().item() for piece in pieces]
    assert counted == [16, 16, 13]
    for piece in pieces:
        assert torch.equal(piece["targets"], piece["labels"]) and piece["targets"].is_floating_point()
        assert not piece["shift_labels"].is_floating_point()
        assert not piece["targets"][piece["shift_labels"] == -100].any()
