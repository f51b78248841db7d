"""From hidden states to logits and losses without ever holding the logits of a whole sequence.

B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lengthen.kernels import linear_cross_entropy

IGNORED = -100
_CHUNK = 1024


def shifted(labels: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Targets [B, T] for labels [B, T] in the library's convention (labels = input_ids): target[t] = labels[t + 1].

    A padded position predicts nothing and is predicted by nothing.
    """
    if attention_mask is not None:
        labels = labels.masked_fill(attention_mask == 0, IGNORED)
    targets = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
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


def head_loss(model: Any, hidden: Tensor, targets: Tensor, items: Tensor | int | None = None) -> Tensor:
    """Cross-entropy of targets [B, T] (-100: none), over `items` tokens or, where that is None, over those counted."""
    flat, wanted = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    total = _losses(model, flat, wanted, "sum")
    if items is None:
        return total / (wanted != IGNORED).sum()
    return total / (items.to(total.device) if isinstance(items, Tensor) else items)


def token_losses(model: Any, hidden: Tensor, targets: Tensor) -> Tensor:
    """Per-token cross-entropy [B, T], 0 where the target is -100."""
    return _losses(model, hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1), "none").view(targets.shape)


def _losses(model: Any, hidden: Tensor, targets: Tensor, reduction: str) -> Tensor:
    head = model.get_output_embeddings()
    if _is_plain(head):
        weight, bias = head.weight, head.bias
        dtype = weight.dtype
        if torch.is_autocast_enabled(hidden.device.type):
            dtype = torch.get_autocast_dtype(hidden.device.type)
        bias = None if bias is None else bias.to(dtype)
        return linear_cross_entropy(
            hidden.to(dtype), weight.to(dtype), targets, bias, ignore_index=IGNORED, reduction=reduction
        )

    def chunk_losses(part: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(_apply_head(model, part).float(), wanted, ignore_index=IGNORED, reduction=reduction)

    parts = [
        checkpoint(chunk_losses, part, wanted, use_reentrant=False)
        for part, wanted in zip(hidden.split(_CHUNK), targets.split(_CHUNK))
    ]
    return torch.cat(parts) if reduction == "none" else torch.stack(parts).sum()


def _apply_head(model: Any, hidden: Tensor) -> Tensor:
    head = model.get_output_embeddings()
    logits = head(hidden.to(head.weight.dtype))
    return logits if logits.dtype == torch.float64 else logits.float()


def _is_plain(head: nn.Module) -> bool:
    """Whether the head is a linear layer that nothing (LoRA, quantisation, a hook) has taken over."""
    hooked = head._forward_hooks or head._forward_pre_hooks or "forward" in head.__dict__
    return type(head) is nn.Linear and not hooked and "parametrizations" not in head._modules
