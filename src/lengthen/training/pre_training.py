"""pretrain(): small models from a recipe, to study where they break; the range of initial decays is an option."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from lengthen.data import Corpus, load_corpus
from lengthen.data.loading import Source
from lengthen.errors import InputError
from lengthen.interventions import Intervention, intervention_named
from lengthen.models import wrap
from lengthen.results import TrainingRecord
from lengthen.streaming import Progress
from lengthen.training.running import Optimisation, run_training


class Recipe(Protocol):
    """How to build a small model to pre-train."""

    def build(self, seed: int = 0) -> nn.Module:
        """The model with random weights from this seed, wrapped."""


@dataclass(frozen=True)
class Mamba2Recipe:
    """A small Mamba-2: width, layers, heads of head_dim channels, state_size per head, vocabulary.

    decay_range: A of each head is drawn uniformly from it. (1, 16) is the stock initialisation; (0.002, 0.05) decays so
    slowly that a state keeps growing past any short training context.
    """

    width: int = 64
    layers: int = 2
    head_dim: int = 32
    state_size: int = 64
    groups: int = 1
    vocabulary: int = 256
    decay_range: tuple[float, float] = (1.0, 16.0)

    def build(self, seed: int = 0) -> nn.Module:
        """The model with random weights from this seed, wrapped."""
        from transformers import Mamba2Config, Mamba2ForCausalLM

        low, high = self.decay_range
        if not 0 < low <= high:
            raise InputError(
                f"The decay range {low} to {high} is not one; give two numbers above 0, the smaller first."
            )
        sizes = {"width": self.width, "layers": self.layers, "head_dim": self.head_dim, "state_size": self.state_size}
        for name, size in {**sizes, "groups": self.groups}.items():
            if size < 1:
                raise InputError(f"The recipe's {name} is {size}; give at least 1.")
        heads, rest = divmod(2 * self.width, self.head_dim)
        if rest:
            raise InputError(f"{2 * self.width} channels cannot be cut into heads of {self.head_dim}.")
        if heads % self.groups:
            raise InputError(
                f"{heads} heads cannot be shared by {self.groups} groups; give a number that divides them."
            )
        config = Mamba2Config(
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            head_dim=self.head_dim,
            num_heads=heads,
            state_size=self.state_size,
            n_groups=self.groups,
            expand=2,
            vocab_size=self.vocabulary,
            tie_word_embeddings=True,
            residual_in_fp32=True,
            chunk_size=64,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = Mamba2ForCausalLM(config)
            for name, parameter in model.named_parameters():
                if name.endswith("A_log"):
                    drawn = torch.empty_like(parameter).uniform_(low, high)
                    parameter.data.copy_(drawn.log())
        return wrap(model)


def pretrain(
    data: Source | Corpus,
    *,
    train_context: int = 64,
    steps: int = 1000,
    recipe: Recipe | None = None,
    intervention: str | Intervention = "zero",
    rows: int = 16,
    learning_rate: float = 4e-3,
    warmup: int = 100,
    tokenizer: Any = "bytes",
    seed: int = 0,
    device: torch.device | str = "cpu",
    out: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    save_steps: int | None = None,
    resume: bool = False,
) -> tuple[nn.Module, TrainingRecord]:
    """Trains a small model from random weights; the learning rate ends at a tenth of its peak.

    recipe: what to build (Mamba2Recipe() unless said), on the CPU, so that a seed gives the same weights everywhere.
    device: where to train. Other arguments as in post_train. Returns the wrapped model and the record.
    """
    recipe = recipe or Mamba2Recipe()
    corpus = data if isinstance(data, Corpus) else load_corpus(data, tokenizer)
    model = recipe.build(seed).to(device)
    optimisation = Optimisation(
        steps=steps,
        rows=rows,
        learning_rate=learning_rate,
        warmup=min(warmup, math.ceil(steps / 10)),
        final_share=0.1,
        config=config or {},
        save_steps=save_steps,
    )
    chosen = intervention if isinstance(intervention, Intervention) else intervention_named(intervention, seed)
    record = run_training(
        model,
        corpus,
        chosen,
        optimisation,
        train_context=train_context,
        seed=seed,
        out=out,
        name="pretrained",
        tokenizer=tokenizer,
        progress=progress,
        resume=resume,
    )
    return model, record
