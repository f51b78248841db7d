"""Whether a module is what it seems, so that its weights may be read instead of calling it."""

from __future__ import annotations

from torch import nn


def is_plain_linear(module: nn.Module) -> bool:
    """Whether this is a linear layer that nothing (LoRA, quantisation, a hook) has taken over."""
    hooked = module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
    return type(module) is nn.Linear and not hooked and "parametrizations" not in module._modules
