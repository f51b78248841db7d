"""State passing in a plain PyTorch loop: post-trains a recurrent language model on a text file.

python examples/plain_loop.py MODEL TEXT OUT [STEPS]
"""

import sys

import torch

import lengthen
from lengthen.data import ShuffledWindows, load_corpus


def main(model_name: str, text: str, out: str, steps: int = 100) -> None:
    model = lengthen.load(model_name).train()
    windows = ShuffledWindows(load_corpus(text, "bytes"), context=64, lanes=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    intervention = lengthen.StatePassing()
    for step, batch in zip(range(steps), windows):
        rows = lengthen.Rows.of(batch, step, shuffled=True)
        state = intervention.initial_state(rows, lengthen.zero_state(model, len(rows)))
        output = model(batch["input_ids"], shift_labels=batch["labels"], initial_state=state)
        output.loss.backward()
        intervention.observe(rows, output.final_state.detach())
        optimizer.step()
        optimizer.zero_grad()

    print(f"loss {output.loss.item():.3f} after {steps} steps")
    model.save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
