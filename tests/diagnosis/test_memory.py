"""Memory of a diagnosis does not grow with the length: each run in a process of its own, peak over a warm segment."""

import json
import subprocess
import sys

import pytest

from tests.conftest import tiny_mamba2

SCRIPT = """
import json, sys
import numpy as np, torch
torch.set_num_threads(1)
from lengthen import diagnose, load
from lengthen.data import bundled_plays, load_corpus

def peak():  # of this program alone: getrusage would count the parent's memory before exec
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))) / 1024

folder, length, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = load(folder)
training, held_out = bundled_plays()
corpus = load_corpus([*training, *held_out])
warm = np.zeros((n, 4097), dtype=np.int64)
diagnose(model, warm, train_context=64, max_length=4096, n=n)
before = peak()
result = diagnose(model, corpus, train_context=64, max_length=length, n=n, join=True)
print(json.dumps({"growth": peak() - before, "peak": peak(), "positions": result.max_length, "n": result.n}))
"""


def growth(folder, length, n):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(length), str(n)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["positions"], found["n"]) == (length, n)
    assert found["peak"] > 100, "megabytes that PyTorch alone takes"
    return found["growth"]


@pytest.mark.parametrize(
    "n, length",
    [
        (1, 65536),
        pytest.param(1, 262144, marks=pytest.mark.acceptance),
        pytest.param(16, 262144, marks=pytest.mark.acceptance),
    ],
)
def test_memory_is_flat_in_the_length(tmp_path, n, length):
    tiny_mamba2().save_pretrained(tmp_path)
    short, long = growth(tmp_path, 16384, n), growth(tmp_path, length, n)
    print(f"n = {n}: peak over a warm segment {short:.1f} MB at 16,384 positions, {long:.1f} MB at {length:,}")
    assert long - short <= 20
