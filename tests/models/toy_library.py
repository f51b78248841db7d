"""A model of the library's kind that does everything right, and any one fault when told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from lengthen.results import CheckResult


def failed(result: CheckResult) -> set[str]:
    return {check.name for check in result.checks if not check.passed}


class ToyConfig(PreTrainedConfig):
    model_type = "toy"
    fault: str = ""
    vocab_size: int = 32
    hidden_size: int = 8
    num_hidden_layers: int = 1
    pad_token_id: int | None = 0


@dataclass
class ToyOutput(ModelOutput):
    logits: Tensor | None = None
    cache: Any = None


class Toy(PreTrainedModel):
    """h_t = 0.9 h_{t-1} + x_t over embeddings, with every courtesy; `fault` takes one of them away."""

    config_class = ToyConfig
    supports_gradient_checkpointing = True

    def __init__(self, config: ToyConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size)
        self.gradient_checkpointing = False
        self.state_on_module, self.doubled = None, False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: dict[str, Tensor] | None = None,
        use_cache: bool | None = None,
    ) -> ToyOutput:
        fault = self.config.fault
        x = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        real = torch.ones(x.shape[:2], dtype=torch.bool) if input_ids is None else input_ids != self.config.pad_token_id
        if fault == "reads pads":
            real = torch.ones_like(real)
        if attention_mask is not None:
            real = attention_mask.bool() if fault != "ignores mask" else torch.ones_like(real)
        restart = torch.zeros_like(real) if position_ids is None or fault == "leaks" else position_ids == 0
        restart = restart.expand_as(real)
        old = None if cache is None else cache.get("recurrent_state", self.state_on_module)
        if fault == "stale" and cache is None:
            old = self.state_on_module
        if fault == "restarts":
            old = None if x.shape[1] > 1 else old
        if fault == "detaches" and old is not None:
            old = old.detach()
        checkpointed = self.gradient_checkpointing and self.training
        if fault == "checkpoint drops" and checkpointed:
            old = None
        if fault == "crashes" and old is not None:
            raise ValueError("no carried state here")
        h = x.new_zeros(x.shape[0], x.shape[2], dtype=torch.float32) if old is None else old
        keep = real[..., None]
        start = (h, x, keep, restart)
        states = checkpoint(_scan, *start, use_reentrant=False) if checkpointed else _scan(*start)
        if fault == "wrong steps" and x.shape[1] == 1 and old is not None:
            states = states + 0.1
        if fault == "mixes rows" and old is not None:
            states = states.roll(1, dims=0)
        if fault == "rescales" and self.doubled == (not self.training):
            self.doubled = self.training
            with torch.no_grad():
                self.head.weight.mul_(2.0 if self.doubled else 0.5)
        last = states[:, -1]
        if fault == "bfloat16 state":
            last = last.to(self.head.weight.dtype)
        asked = use_cache if use_cache is not None else not (fault == "silent in training" and self.training)
        if cache is not None and fault == "in place":
            with torch.no_grad():
                cache["recurrent_state"].copy_(last)
            last = cache["recurrent_state"]
        if cache is not None and fault == "advances":
            cache["recurrent_state"] = last.detach()
        if fault in ("on module", "stale"):
            self.state_on_module = last.detach()
        logits = self.head(states.to(self.head.weight.dtype) * (0.5 if self.doubled else 1.0))
        if fault == "no gradient" and old is not None:
            logits = logits.detach()
        held = {"calls": 1} if fault == "on module" else {"recurrent_state": last}
        return ToyOutput(logits=logits, cache=held if asked else None)


def _scan(h: Tensor, x: Tensor, keep: Tensor, restart: Tensor) -> Tensor:
    states = []
    for t in range(x.shape[1]):
        h = torch.where(restart[:, t, None], 0.0, h)
        h = torch.where(keep[:, t], 0.9 * h + x[:, t].float(), h)
        states.append(h)
    return torch.stack(states, dim=1)


class SwallowingToy(Toy):
    """Takes any keyword, and uses those it knows."""

    def forward(self, input_ids: Tensor | None = None, cache: Any = None, **others: Any) -> ToyOutput:
        known = {"inputs_embeds", "attention_mask", "position_ids", "use_cache"}
        return super().forward(input_ids, cache=cache, **{name: others[name] for name in known & others.keys()})


def toy(fault: str = "", kind: type[Toy] = Toy) -> Toy:
    torch.manual_seed(0)
    return kind(ToyConfig(fault=fault)).eval()
