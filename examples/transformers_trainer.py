"""State passing in transformers' Trainer: one class before it, everything else as it was.

python examples/transformers_trainer.py MODEL TEXT OUT [STEPS]
"""

import sys
from pathlib import Path

from transformers import Trainer, TrainingArguments

import lengthen
from lengthen.training import InitialStates


class StatePassingTrainer(InitialStates, Trainer):
    pass


def main(model_name: str, text: str, out: str, steps: int = 100) -> None:
    read = Path(text).read_bytes()
    windows = [list(read[i : i + 64]) for i in range(0, len(read) - 64, 64)]
    trainer = StatePassingTrainer(
        model=lengthen.load(model_name),
        args=TrainingArguments(
            out, max_steps=steps, per_device_train_batch_size=16, learning_rate=1e-3, report_to="none"
        ),
        train_dataset=[{"input_ids": ids, "labels": ids} for ids in windows],
        intervention=lengthen.StatePassing(),
    )
    print(f"loss {trainer.train().training_loss:.3f} after {steps} steps")
    trainer.save_model(out)


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
