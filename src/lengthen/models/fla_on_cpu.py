"""fla's modules on a CPU: what its models call of Triton besides their recurrences, in plain PyTorch.

flash-linear-attention runs on GPUs alone. wrap() puts these forwards on the instances at hand; tensors on a GPU still
go to fla's own. Sums and norms are taken in at least float32 and given in the input's type, as fla's kernels do.
fla itself is not imported.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthen.errors import InputError


def run_on_cpu(model: nn.Module) -> None:
    """Gives every module of fla's that would call Triton a forward that does so on a GPU alone.

    Raises InputError for what has no such forward: attention, which wants flash-attn and takes neither masks nor caches
    of lengthen's, and residuals by attention where the model is not on a GPU.
    """
    for name, module in model.named_modules():
        if type(module).__module__ == "fla.layers.attn":
            raise InputError(
                f"{type(model).__name__} mixes recurrent layers with fla's attention ({name}), whose past lengthen cannot "
                "carry; give a model without attention (config.attn=None)."
            )
    block = getattr(getattr(model, "config", None), "attnres_block_size", None)
    if block is not None and not next(model.parameters()).is_cuda:
        raise InputError(
            f"{type(model).__name__} has residuals by attention (attnres_block_size={block}), which fla runs on a GPU "
            "alone; move the model to one before wrapping it."
        )
    for module in model.modules():
        if _plain_forward(module) is not None:
            module.forward = bound(module)


def bound(module: nn.Module) -> types.MethodType:
    """`forward` as the module's own method."""
    return types.MethodType(forward, module)


def run_as_before(model: nn.Module) -> None:
    """Takes off what run_on_cpu put on."""
    for module in model.modules():
        if getattr(module.__dict__.get("forward"), "__func__", None) is forward:
            del module.forward


def forward(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The forward of one module: fla's own on a GPU, plain PyTorch elsewhere."""
    plain = _plain_forward(self)
    if x.is_cuda or plain is None:
        return type(self).forward(self, x, *args, **kwargs)
    return plain(self, x, *args, **kwargs)


def activation(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """An activation as fla's layers hold it, in plain PyTorch; the function itself where it is no kernel of fla's."""
    owner = getattr(function, "__self__", function)  # most of fla's are the apply of an autograd function
    return _ACTIVATIONS.get(getattr(owner, "__qualname__", ""), function)


# -- norms --------------------------------------------------------------------------------------------------------


def _precise(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _normed(module: Any, x: Tensor, size: int, centred: bool) -> Tensor:
    """x [..., D] normed over runs of `size` channels, then scaled and shifted by what the module has of both."""
    runs = x.unflatten(-1, (-1, size))
    y = F.layer_norm(runs, (size,), eps=module.eps) if centred else F.rms_norm(runs, (size,), eps=module.eps)
    y = y.flatten(-2)
    y = y if module.weight is None else y * module.weight.to(y.dtype)
    return y if module.bias is None else y + module.bias.to(y.dtype)


def _norm(
    module: Any,
    x: Tensor,
    residual: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    *,
    centred: bool,
    gate: Tensor | None = None,
) -> Any:
    """The norm of x + residual in x's type; with it, if prenorm, that sum in the residual's type."""
    total = _precise(x) if residual is None else _precise(x) + _precise(residual)
    y = _normed(module, total, total.shape[-1] // getattr(module, "num_groups", 1), centred)
    y = (y if gate is None else y * gate).to(x.dtype)
    if not prenorm:
        return y
    return y, total.to(residual.dtype if residual is not None else torch.float32 if residual_in_fp32 else x.dtype)


def _group_norm(module: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    return _norm(module, x, *args, **kwargs, centred=not module.is_rms_norm)


def _norm_then_gate(module: Any, x: Tensor, g: Tensor, *args: Any, centred: bool, **kwargs: Any) -> Any:
    gate = torch.sigmoid if module.activation == "sigmoid" else F.silu
    return _norm(module, x, *args, **kwargs, centred=centred, gate=gate(_precise(g)))


def _grouped_norm_and_gate(module: Any, x: Tensor, z: Tensor | None = None, *, centred: bool) -> Tensor:
    y = _precise(x)
    gate = None if z is None else F.silu(_precise(z))
    if gate is not None and not module.norm_before_gate:
        y = y * gate
    y = _normed(module, y, module.group_size or y.shape[-1], centred)
    return (y * gate if gate is not None and module.norm_before_gate else y).to(x.dtype)


# -- the rest -----------------------------------------------------------------------------------------------------


def _gated_mlp(module: Any, x: Tensor, **_: Any) -> Tensor:
    gate, up = module.gate_proj(x), module.up_proj(x)
    gated = _powlu(gate, module.powglu_power) if module.hidden_act == "powlu" else F.silu(gate)
    return module.down_proj(gated * up)


def _powlu(x: Tensor, power: float) -> Tensor:
    """sigmoid(x) times x for x <= 0, times x ** (power / (1 + sqrt(x))) above."""
    wide = _precise(x)
    above = wide.where(wide > 0, 1)  # so that no gradient of the branch not taken is infinite
    grown = above ** (power / (1 + above.sqrt()))
    return (torch.sigmoid(wide) * torch.where(wide > 0, grown, wide)).to(x.dtype)


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "SwishFunction": F.silu,
    "SigmoidFunction": torch.sigmoid,
    "SquaredReLUFunction": _squared_relu,
    "FastGeLUFunction": _gelu,
    "logsigmoid": F.logsigmoid,
}

_NORMS, _GATED = "fla.modules.norm.layernorm", "fla.modules.norm.fused_norm_gate"
_PLAIN: dict[str, Callable[..., Any]] = {
    f"{_NORMS}.RMSNorm": functools.partial(_norm, centred=False),
    f"{_NORMS}.LayerNorm": functools.partial(_norm, centred=True),
    f"{_NORMS}.GroupNorm": _group_norm,
    f"{_GATED}.FusedRMSNormGated": functools.partial(_norm_then_gate, centred=False),
    f"{_GATED}.FusedLayerNormGated": functools.partial(_norm_then_gate, centred=True),
    "fla.modules.norm.layernorm_gated.RMSNormGated": functools.partial(_grouped_norm_and_gate, centred=False),
    "fla.modules.norm.layernorm_gated.LayerNormGated": functools.partial(_grouped_norm_and_gate, centred=True),
    "fla.modules.mlp.GatedMLP": _gated_mlp,
}


def _plain_forward(module: nn.Module) -> Callable[..., Any] | None:
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(module).__mro__)
    return next((_PLAIN[name] for name in names if name in _PLAIN), None)
