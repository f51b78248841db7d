"""What state passing costs over the same training without it, at the 130m layer's shape, on one thread."""

import json
import os
import statistics
import subprocess
import sys
import time

import pytest

from lengthen import StatePassing, Zero
from tests.training.overhead import model_of, step

pytestmark = pytest.mark.acceptance


def test_time_a_step():
    """CPU seconds of the two, step by step in turn; the median of the pairs' ratios."""
    arms = [(*model_of(1), make()) for make in (Zero, StatePassing)]
    pairs = []
    for number in range(24):
        pair = []
        for model, optimizer, intervention in arms[:: 1 if number % 2 else -1]:
            began = time.process_time()
            step(model, optimizer, intervention, number, rows=4, context=512)
            pair.append(time.process_time() - began)
        pairs.append(pair[:: 1 if number % 2 else -1])
    ratio = statistics.median(passing / zero for zero, passing in pairs[2:])
    print(
        f"a step takes {statistics.median(zero for zero, _ in pairs):.2f} s; with state passing {ratio:.3f} times that"
    )
    assert ratio <= 1.03


@pytest.mark.parametrize("layers", [1, 8])
def test_memory(layers):
    """Peak memory in a process of its own, with short windows, where the bank is large: one bank more and nothing else.

    Freed memory goes back to the system at once, or the peak would tell what malloc keeps for later as well.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    found = {}
    for name in ("zero", "state-passing"):
        command = [sys.executable, "-m", "tests.training.overhead_worker", name, str(layers), "24", "64"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        found[name] = json.loads(done.stdout)
    more, bank = found["state-passing"]["peak"] - found["zero"]["peak"], found["zero"]["bank"]
    print(f"{layers} layers: state passing takes {more / bank:.2f} banks more than none ({bank / 2**20:.0f} MiB)")
    assert 0.5 * bank < more <= bank
