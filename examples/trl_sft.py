"""State passing in TRL's SFTTrainer: prompts and completions as TRL prepares them, one class before its trainer.

python examples/trl_sft.py MODEL TEXT OUT [STEPS]; MODEL brings its tokenizer, TEXT is cut into lines.
"""

import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

import lengthen
from lengthen.training import InitialStates


class StatePassingSFTTrainer(InitialStates, SFTTrainer):
    pass


def main(model_name: str, text: str, out: str, steps: int = 100) -> None:
    lines = [line for line in Path(text).read_text().splitlines() if line.strip()]
    examples = [{"prompt": a, "completion": " " + b} for a, b in zip(lines[::2], lines[1::2])]
    config = SFTConfig(
        out,
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        max_length=64,
        bf16=torch.cuda.is_available(),
        report_to="none",
    )
    trainer = StatePassingSFTTrainer(
        model=lengthen.load(model_name),
        args=config,
        train_dataset=Dataset.from_list(examples),
        processing_class=AutoTokenizer.from_pretrained(model_name),
        intervention=lengthen.StatePassing(),
    )
    print(f"loss {trainer.train().training_loss:.3f} after {steps} steps")
    trainer.save_model(out)


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
