"""From hidden states to logits and losses without ever holding the logits of a whole sequence.

B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lengthen.kernels import linear_cross_entropy
from lengthen.models.plain import is_plain_linear

IGNORED = -100
_CHUNK = 1024

# What a library's model multiplies the logits of its head with.
_SCALES: dict[str, Callable[[Any], float]] = {
    "transformers.models.falcon_h1.modeling_falcon_h1.FalconH1ForCausalLM": lambda m: m.model.lm_head_multiplier,
    "transformers.models.granitemoehybrid.modeling_granitemoehybrid.GraniteMoeHybridForCausalLM": (
        lambda m: 1 / m.config.logits_scaling
    ),
}
# Names under which a configuration caps logits softly: a logit z becomes cap tanh(z / cap).
_SOFT_CAPS = ("logits_soft_cap", "output_logit_soft_cap", "final_logit_softcapping")
# What it adds to its loss: this times the mean squared log-sum-exp of the logits.
_Z_LOSSES: dict[str, Callable[[Any], float]] = {
    "transformers.models.bamba.modeling_bamba.BambaForCausalLM": lambda m: m.z_loss_coefficient,
}
_LARGEST_LOGITS = 1e-4  # how strongly fla draws them towards 0


def shifted(labels: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Targets [B, T] for labels [B, T] in the library's convention (labels = input_ids): target[t] = labels[t + 1].

    A padded position predicts nothing and is predicted by nothing.
    """
    if attention_mask is not None:
        labels = labels.masked_fill(attention_mask == 0, IGNORED)
    return masked(F.pad(labels[:, 1:], (0, 1), value=IGNORED), attention_mask)


def masked(targets: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Targets [B, T] with none at padded positions."""
    return targets if attention_mask is None else targets.masked_fill(attention_mask == 0, IGNORED)


def head_logits(model: Any, hidden: Tensor, keep: int | Tensor = 0) -> Tensor:
    """Logits [B, kept, V]; keep: the last so many positions (0: all) or their indices, as in transformers."""
    kept = (
        hidden[:, -keep:]
        if isinstance(keep, int) and keep > 0
        else hidden
        if isinstance(keep, int)
        else hidden[:, keep]
    )
    return _apply_head(model, kept)


def head_loss(
    model: Any,
    hidden: Tensor,
    targets: Tensor,
    items: Tensor | int | None = None,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of targets [B, T] (-100: none), over `items` tokens or, where that is None, over those counted.

    Where the library's model adds a z-loss, so does this: over the positions that attention_mask [B, T] calls real.
    Likewise where it draws the largest logits towards 0 (fla's use_l2warp), which shows in the gradient alone.
    """
    flat, wanted = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    real = flat if attention_mask is None else flat[attention_mask.reshape(-1) != 0]
    loss = _losses(model, flat, wanted, "sum")
    if items is None:
        loss = loss / (wanted != IGNORED).sum()
    if getattr(model.config, "use_l2warp", False):
        drawn = _LARGEST_LOGITS / 2 * _mean_square(model, real, _largest)
        loss = loss + (drawn - drawn.detach())
    if items is not None:
        loss = loss / (items.to(loss.device) if isinstance(items, Tensor) else items)
    coefficient = _of_class(model, _Z_LOSSES, 0.0)
    if coefficient > 0:
        loss = loss + coefficient * _mean_square(model, real, _log_sum)
    return loss


def router_loss(model: Any, router_logits: tuple[Tensor, ...], attention_mask: Tensor | None) -> Tensor:
    """The library's load-balancing loss of a mixture of experts, over real positions.

    router_logits: one [B * T, experts] a layer, real positions of each row first; attention_mask: [B, T] as given.
    """
    function = next(
        sys.modules[cls.__module__].load_balancing_loss_func
        for cls in type(model).__mro__
        if hasattr(sys.modules[cls.__module__], "load_balancing_loss_func")
    )
    real = None if attention_mask is None else (attention_mask != 0).sort(1, descending=True).values
    return function(router_logits, model.num_experts, model.num_experts_per_tok, real)


def token_losses(model: Any, hidden: Tensor, targets: Tensor) -> Tensor:
    """Per-token cross-entropy [B, T], 0 where the target is -100."""
    return _losses(model, hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1), "none").view(targets.shape)


def _losses(model: Any, hidden: Tensor, targets: Tensor, reduction: str) -> Tensor:
    head = model.get_output_embeddings()
    if is_plain_linear(head) and _soft_cap(model) is None:
        weight, bias = head.weight, head.bias
        dtype = weight.dtype
        if torch.is_autocast_enabled(hidden.device.type):
            dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, bias = hidden.to(dtype), None if bias is None else bias.to(dtype)
        scale = _of_class(model, _SCALES, 1.0)
        if scale != 1:
            hidden, bias = hidden * scale, None if bias is None else bias * scale
        return linear_cross_entropy(hidden, weight.to(dtype), targets, bias, ignore_index=IGNORED, reduction=reduction)

    def chunk_losses(part: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(_apply_head(model, part), wanted, ignore_index=IGNORED, reduction=reduction)

    parts = [
        checkpoint(chunk_losses, part, wanted, use_reentrant=False)
        for part, wanted in zip(hidden.split(_CHUNK), targets.split(_CHUNK))
    ]
    return torch.cat(parts) if reduction == "none" else torch.stack(parts).sum()


def _largest(logits: Tensor) -> Tensor:
    return logits.amax(-1)


def _log_sum(logits: Tensor) -> Tensor:
    return logits.logsumexp(-1)


def _mean_square(model: Any, hidden: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean square of a number that `of` makes of the logits at each position of hidden [N, D]."""

    def chunk_sum(part: Tensor) -> Tensor:
        return of(_apply_head(model, part)).square().sum()

    parts = [checkpoint(chunk_sum, part, use_reentrant=False) for part in hidden.split(_CHUNK)]
    return torch.stack(parts).sum() / hidden.shape[0]


def _apply_head(model: Any, hidden: Tensor) -> Tensor:
    head = model.get_output_embeddings()
    logits = head(hidden.to(head.weight.dtype))
    logits = logits if logits.dtype == torch.float64 else logits.float()
    scale = _of_class(model, _SCALES, 1.0)
    logits = logits if scale == 1 else logits * scale
    cap = _soft_cap(model)
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _soft_cap(model: Any) -> float | None:
    config = model.config.get_text_config()
    return next((cap for name in _SOFT_CAPS if (cap := getattr(config, name, None)) is not None), None)


def _of_class(model: Any, table: dict[str, Callable[[Any], float]], otherwise: float) -> float:
    """What the table says of the model's class or one it derives from."""
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(model).__mro__)
    return next((float(table[name](model)) for name in names if name in table), otherwise)
