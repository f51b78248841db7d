"""State passing for a model of audio frames: a GRU that follows a tone, made to fail past its training length, repaired.

python examples/audio_regression.py [STEPS]

The frames are like those of a filter bank, 40 bands of a slowly modulated tone in noise. The target of a frame is the
tone's pitch, smoothed over the last sixteen frames or so, which needs memory. The GRU is trained on windows of 32
frames from the zero state; read for longer its slow units drift to where no window ever took them.
"""

import copy
import sys

import numpy as np
import torch
from torch import nn

import lengthen
from lengthen.data import HeldOutSequences, load_corpus

BANDS, TRAIN_CONTEXT = 40, 32


class PitchFollower(nn.Module):
    """Frames [rows, positions, 40] -> smoothed pitch [rows, positions, 1]."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.gru = nn.GRU(BANDS, hidden, batch_first=True)
        self.pitch = nn.Linear(hidden, 1)
        with torch.no_grad():  # units that remember for 1 to 65,536 frames
            self.gru.bias_ih_l0[hidden : 2 * hidden] = torch.rand(hidden) * np.log(65536)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return self.pitch(self.gru(frames)[0])


def tones(count: int, length: int, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Frames [length, 40] and smoothed pitch [length, 1] of so many recordings."""
    random, t = np.random.default_rng(seed), np.arange(length)

    def wave(size: float, shortest: int, longest: int) -> np.ndarray:
        period, phase = random.uniform(shortest, longest, (count, 1)), random.uniform(0, 2 * np.pi, (count, 1))
        return size * np.sin(2 * np.pi * t / period + phase)

    pitch = 20 + sum(wave(random.uniform(2, 5), 30, 300) for _ in range(3))
    loudness = 1 + wave(0.5, 20, 200)
    frames = loudness[..., None] * np.exp(-((np.arange(BANDS) - pitch[..., None]) ** 2) / 8)
    frames += 0.1 * random.standard_normal(frames.shape)
    smoothed = np.zeros_like(pitch)
    for i in range(1, length):
        smoothed[:, i] = smoothed[:, i - 1] + ((pitch[:, i] - 20) / 10 - smoothed[:, i - 1]) / 16
    return list(frames.astype(np.float32)), list(smoothed[..., None].astype(np.float32))


def main(steps: int = 600) -> None:
    frames, pitch = tones(32, 4096, seed=1)
    corpus = load_corpus(frames, targets=pitch)
    frames, pitch = tones(16, 64 * TRAIN_CONTEXT, seed=2)
    held_out = HeldOutSequences(load_corpus(frames, targets=pitch), length=64 * TRAIN_CONTEXT, count=16)

    torch.manual_seed(0)
    model = PitchFollower()
    options = {"train_context": TRAIN_CONTEXT, "rows": 16}
    lengthen.post_train(model, corpus, intervention="zero", steps=steps, learning_rate=1e-2, **options)
    print("state carried:", lengthen.check(model, inputs=torch.from_numpy(frames[0])[None]).passed)

    arms = {"before": model}
    for name in ("zero", "state-passing"):
        arms[name] = copy.deepcopy(model)
        lengthen.post_train(
            arms[name], corpus, intervention=name, steps=steps // 3, learning_rate=3e-3, seed=1, **options
        )
    for name, arm in arms.items():
        found = lengthen.diagnose(arm, held_out, train_context=TRAIN_CONTEXT, name=name)
        print(f"{name}: far {found.far:.4f}, reset {found.own_reset:.4f}. {found.verdict}")

    final = list(lengthen.stream(arms["state-passing"], held_out))[-1]
    print(f"streamed to position {final.end}; the state takes {final.final_state.bytes // 16} bytes a recording")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
