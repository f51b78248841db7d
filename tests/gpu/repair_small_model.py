"""Pre-trains a model on the spot that fails past its training context, repairs it, and judges both, on one GPU.

    python tests/gpu/repair_small_model.py

A Mamba-2 of more than 10 million parameters whose decays start slow learns the bundled plays at T = 512, is post-trained
for 500 steps from the zero state (the control) and by state passing, and all three are judged to 64 T. Exit 1 where the
model did not fail, state passing did not repair it, or it took more than ten minutes. --tiny: the same at a size for a
CPU, in half a minute.
"""

import argparse
import copy
import sys
import time
from dataclasses import dataclass

import torch

from lengthen import StatePassing, Zero, diagnose
from lengthen.data import HeldOutSequences, bundled_plays, load_corpus
from lengthen.training import Mamba2Recipe, Optimisation, run_training

FAILS, REPAIRED, MINUTES = 1.5, 1.05, 10


@dataclass(frozen=True)
class Size:
    """What is trained, and how long."""

    recipe: Mamba2Recipe
    train_context: int
    pretraining: Optimisation
    post_training: Optimisation
    least_parameters: int


FULL = Size(
    Mamba2Recipe(width=512, layers=8, head_dim=64, decay_range=(0.0005, 0.0125)),
    512,
    Optimisation(steps=1500, rows=32, learning_rate=2e-3, warmup=100, final_share=0.1, config={"bf16": True}),
    Optimisation(steps=500, rows=32, learning_rate=1e-3, config={"bf16": True}),
    10_000_000,
)
TINY = Size(
    Mamba2Recipe(layers=1, decay_range=(0.002, 0.05)),
    64,
    Optimisation(steps=300, learning_rate=4e-3, warmup=30, final_share=0.1),
    Optimisation(steps=60, learning_rate=3e-3),
    10_000,
)


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--tiny", action="store_true")
    tiny = arguments.parse_args().tiny
    size, device = (TINY, "cpu") if tiny else (FULL, "cuda")
    began, context = time.perf_counter(), size.train_context
    corpus, held_out = map(load_corpus, bundled_plays())
    tokens = HeldOutSequences(held_out, length=64 * context, count=16)
    base = size.recipe.build(seed=0).to(device)
    parameters = sum(p.numel() for p in base.parameters())
    print(f"{parameters:,} parameters on {torch.cuda.get_device_name() if not tiny else 'a CPU'}", flush=True)
    run_training(base, corpus, Zero(), size.pretraining, train_context=context)
    found = {}
    for name, intervention in (("before", None), ("control", Zero()), ("state passing", StatePassing())):
        model = copy.deepcopy(base)
        if intervention is not None:
            run_training(model, corpus, intervention, size.post_training, train_context=context, seed=1)
        found[name] = diagnose(model, tokens, train_context=context, remembrance=False, drift=False, patching=False)
        print(f"{name:14} {found[name].verdict} ({time.perf_counter() - began:.0f} s)", flush=True)
    print(f"\n{'perplexity':14} in context      far  own reset  far / control reset")
    for name, d in found.items():
        ratio = d.far / found["control"].own_reset
        print(f"{name:14} {d.in_context:10.3f} {d.far:8.3f} {d.own_reset:10.3f} {ratio:20.3f}")
    minutes = (time.perf_counter() - began) / 60
    reset = found["control"].own_reset
    passed = {
        f"at least {size.least_parameters:,} parameters": parameters >= size.least_parameters,
        f"the control fails (far over reset at least {FAILS})": found["control"].far >= FAILS * reset,
        f"state passing repairs it (at most {REPAIRED})": found["state passing"].far <= REPAIRED * reset,
        f"{minutes:.1f} minutes (at most {MINUTES})": minutes <= MINUTES,
    }
    for what, true in passed.items():
        print(f"{'passed' if true else 'FAILED'}: {what}")
    return 0 if all(passed.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
