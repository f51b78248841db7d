"""Trains layers of the 130m shape and prints its peak memory and the bank's size, in bytes.

python -m tests.training.overhead_worker INTERVENTION LAYERS ROWS CONTEXT
"""

import json
import sys
from pathlib import Path

import torch

from lengthen import StatePassing, Zero, zero_state
from tests.training.overhead import model_of, step

torch.set_num_threads(1)
intervention = {"zero": Zero, "state-passing": StatePassing}[sys.argv[1]]()
layers, rows, context = map(int, sys.argv[2:])
model, optimizer = model_of(layers)
for number in range(4):
    step(model, optimizer, intervention, number, rows, context)
(line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
peak = int(line.split()[1]) * 1024  # of this program alone: ru_maxrss begins at what the parent holds
print(json.dumps({"peak": peak, "bank": zero_state(model, rows).bytes}))
