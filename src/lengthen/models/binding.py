"""What wrap() leaves on a model: layers that know their name and kind, and with them the layout of its states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lengthen.errors import InputError
from lengthen.models.attention import AttentionCache, SequenceState, has_attention
from lengthen.models.families import FAMILY_OF, KINDS
from lengthen.models.hooks import MEMORY, MEMORY_SPEC, Hook, memory_of
from lengthen.state import LayerState, RecurrentState


@dataclass(frozen=True)
class LayerBinding:
    """What a wrapped layer knows of itself: its name in the model that was wrapped, its kind's name, and its hook."""

    name: str
    kind: str
    hook: Hook | None = None

    def zero_state(self, layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
        """The layer's zero state, with the hook's memory where there is a hook."""
        zero = KINDS[self.kind].zero_state(layer, rows, device, dtype)
        return (
            zero
            if self.hook is None
            else zero | memory_of(self.hook, self.name, zero, KINDS[self.kind].specs_of(layer))
        )


def wrapped_layers(model: nn.Module) -> Iterator[tuple[LayerBinding, nn.Module]]:
    """The wrapped layers, in the model's order."""
    for layer in model.modules():
        binding = layer.__dict__.get("_lengthen")
        if isinstance(binding, LayerBinding):
            yield binding, layer


def library_model(model: nn.Module) -> Any:
    """The library's model inside DistributedDataParallel, torch.compile and peft."""
    inner: Any = model
    while True:
        if isinstance(inner, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = inner.module
        elif hasattr(inner, "_orig_mod"):
            inner = inner._orig_mod
        elif hasattr(inner, "get_base_model"):
            inner = inner.get_base_model()
        else:
            return inner


def is_language_model(model: nn.Module) -> bool:
    """Whether this is a library's model with embeddings and a head, rather than any other module."""
    return hasattr(type(library_model(model)), "get_output_embeddings")


def vocabulary_size(model: nn.Module) -> int | None:
    """The number of token ids a language model has; None for any other module, whose inputs are its own matter."""
    return library_model(model).get_input_embeddings().num_embeddings if is_language_model(model) else None


def zero_state(model: nn.Module, rows: int, device: torch.device | str | None = None) -> RecurrentState:
    """The zero state of a wrapped model for so many rows, on its device (or the one given)."""
    target = library_model(model)
    parameter = next(target.parameters())
    device = torch.device(device) if device is not None else parameter.device
    dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
    layers = list(wrapped_layers(target))
    if not layers:
        raise InputError(f"{type(target).__name__} is not wrapped; call lengthen.wrap(model) first.")
    return state_of(target, {b.name: b.zero_state(layer, rows, device, dtype) for b, layer in layers})


def state_of(target: nn.Module, tensors: dict[str, LayerState]) -> RecurrentState:
    """The state that layer name -> tensors make, with each layer's specs."""
    known = {binding.name: KINDS[binding.kind].specs_of(layer) for binding, layer in wrapped_layers(target)}
    specs = {
        layer: {name: MEMORY_SPEC if name.startswith(MEMORY) else known[layer][name] for name in named}
        for layer, named in tensors.items()
    }
    return RecurrentState(tensors, specs, family_name(target))


def sequence_start(model: nn.Module, rows: int, device: torch.device | str | None = None) -> RecurrentState:
    """The state before a sequence's first token, from which calls carry what attention has seen too.

    A SequenceState of zeros for a hybrid, the zero state for a model without attention.
    """
    zero = zero_state(model, rows, device)
    return SequenceState(zero, AttentionCache.empty(rows, zero.device)) if has_attention(library_model(model)) else zero


def family_name(model: nn.Module) -> str:
    """The family of a wrapped model's recurrent layers; several are joined by "+"."""
    return "+".join(dict.fromkeys(FAMILY_OF[binding.kind] for binding, _ in wrapped_layers(library_model(model))))


def layout(model: nn.Module) -> str:
    """The layout fingerprint of a wrapped model's states."""
    return zero_state(model, 1, "meta").layout


def weights_fingerprint(model: nn.Module) -> str:
    """Fingerprint of the model's parameters and buffers: by value, each storage once, wrapper prefixes stripped."""
    import hashlib

    digest, seen = hashlib.sha256(), set()
    for name, tensor in sorted(library_model(model).state_dict().items()):
        if tensor.data_ptr() not in seen or tensor.numel() == 0:
            seen.add(tensor.data_ptr())
            digest.update(name.encode())
            digest.update(tensor.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
