"""Small models of other families whose memories start long, so that they fail past a short training context.

Those of flash-linear-attention have one layer and need fla installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from lengthen.errors import InputError
from lengthen.models import wrap

VOCABULARY = 256


@dataclass(frozen=True)
class Mamba1Recipe:
    """Mamba-1 whose n-th state of every channel decays at slowness x n, n = 1 to state_size."""

    width: int = 64
    layers: int = 2
    state_size: int = 16
    slowness: float = 0.002

    def build(self, seed: int = 0) -> nn.Module:
        """The model with random weights from this seed, wrapped."""
        from transformers import MambaConfig, MambaForCausalLM

        config = MambaConfig(
            vocab_size=VOCABULARY,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            state_size=self.state_size,
            tie_word_embeddings=True,
        )
        decays = self.slowness * torch.arange(1, self.state_size + 1, dtype=torch.float32)
        return _built(lambda: MambaForCausalLM(config), seed, "A_log", lambda p: p.copy_(decays.log().expand_as(p)))


@dataclass(frozen=True)
class GLARecipe:
    """Gated linear attention with its short convolution and one head, the gates' biases at gate_bias."""

    width: int = 64
    gate_bias: float = 5.0

    def build(self, seed: int = 0) -> nn.Module:
        """The model with random weights from this seed, wrapped."""
        options = {"num_heads": 1, "expand_k": 2.0, "expand_v": 2.0, "use_short_conv": True}
        make = partial(_of_fla, "GLA", self.width, options)
        return _built(make, seed, "gk_proj.1.bias", lambda p: p.fill_(self.gate_bias))


@dataclass(frozen=True)
class RWKV6Recipe:
    """RWKV-6 with one head, its decays' biases drawn uniformly from decay_bias."""

    width: int = 64
    decay_bias: tuple[float, float] = (-9.5, -8.5)

    def build(self, seed: int = 0) -> nn.Module:
        """The model with random weights from this seed, wrapped."""
        make = partial(_of_fla, "RWKV6", self.width, {"num_heads": 1, "expand_k": 2.0, "expand_v": 2.0})
        return _built(make, seed, "w_proj.linear.lora.2.bias", lambda p: p.uniform_(*self.decay_bias))


@dataclass(frozen=True)
class GatedDeltaNetRecipe:
    """Gated DeltaNet with one head of key size 64 and value size 128, A drawn uniformly from decay_range."""

    width: int = 64
    decay_range: tuple[float, float] = (1e-6, 1e-5)

    def build(self, seed: int = 0) -> nn.Module:
        """The model with random weights from this seed, wrapped."""
        make = partial(_of_fla, "GatedDeltaNet", self.width, {"num_heads": 1, "head_dim": 64, "expand_v": 2})
        return _built(make, seed, "A_log", lambda p: p.uniform_(*self.decay_range).log_())


def _of_fla(name: str, width: int, options: dict[str, Any]) -> nn.Module:
    try:
        library = importlib.import_module("fla.models")
    except ImportError as error:
        raise InputError(
            f"A small {name} is built from flash-linear-attention, which cannot be imported ({error}); pip install "
            "'lengthen[fla]'."
        ) from None
    shared = {"vocab_size": VOCABULARY, "hidden_size": width, "num_hidden_layers": 1, "fuse_cross_entropy": False}
    config = getattr(library, f"{name}Config")(**shared, **options, tie_word_embeddings=True)
    model: nn.Module = getattr(library, f"{name}ForCausalLM")(config)
    return model


def _built(
    make: Callable[[], nn.Module], seed: int, decays: str, redraw: Callable[[torch.Tensor], torch.Tensor]
) -> nn.Module:
    """The model made under a seed, the parameters whose name ends with `decays` redrawn in place."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = make()
        for name, parameter in model.named_parameters():
            if name.endswith(decays):
                redraw(parameter)
    return wrap(model)
