"""State passing in an Accelerate loop, on one process or many: each process reads its own lanes.

accelerate launch examples/accelerate_loop.py MODEL TEXT OUT [STEPS]
"""

import sys

import torch
from accelerate import Accelerator

import lengthen
from lengthen.data import ShuffledWindows, load_corpus


def main(model_name: str, text: str, out: str, steps: int = 100) -> None:
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    rank, processes = accelerator.process_index, accelerator.num_processes
    windows = ShuffledWindows(load_corpus(text, "bytes"), context=64, lanes=16, rank=rank, world_size=processes)
    model = lengthen.load(model_name).train()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    intervention = lengthen.StatePassing()
    for step, batch in zip(range(steps), windows):
        batch = {name: value.to(accelerator.device) for name, value in batch.items()}
        rows = lengthen.Rows.of(batch, step, shuffled=True, lanes=windows.lanes)
        state = intervention.initial_state(rows, lengthen.zero_state(model, len(rows)))
        output = model(input_ids=batch["input_ids"], shift_labels=batch["labels"], initial_state=state)
        accelerator.backward(output.loss)
        intervention.observe(rows, output.final_state.detach())
        optimizer.step()
        optimizer.zero_grad()

    loss = accelerator.reduce(output.loss.detach(), reduction="mean")
    accelerator.print(f"loss {loss.item():.3f} after {steps} steps of {processes} processes")
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(out)
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
