"""Trains layers of the 130m shape and prints its peak memory and the bank's size, in bytes.

python -m tests.training.overhead_worker INTERVENTION LAYERS ROWS CONTEXT
"""

import json
import resource
import sys

import torch

from lengthen import StatePassing, Zero, zero_state
from tests.training.overhead import model_of, step

torch.set_num_threads(1)
intervention = {"zero": Zero, "state-passing": StatePassing}[sys.argv[1]]()
layers, rows, context = map(int, sys.argv[2:])
model, optimizer = model_of(layers)
for number in range(4):
    step(model, optimizer, intervention, number, rows, context)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"peak": peak, "bank": zero_state(model, rows).bytes}))
