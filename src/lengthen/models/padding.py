"""Padding anywhere in a row, made right padding: real tokens first, so that a recurrence sees them in one run.

B batch, T positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lengthen.errors import InputError


@dataclass(frozen=True)
class Compaction:
    """How a padded batch is rearranged before the model and back after it.

    order, inverse: int64 [B, T] permutations, None where nothing moves. lengths: int64 [B], None where all is real.
    reset: bool [B, T] in the new order. trailing_reset: bool [B], rows reset after their last real token, or None.
    """

    order: Tensor | None
    inverse: Tensor | None
    lengths: Tensor | None
    reset: Tensor | None
    trailing_reset: Tensor | None

    @staticmethod
    def of(attention_mask: Tensor | None, reset: Tensor | None) -> Compaction:
        """The rearrangement for an attention mask [B, T] (1 real, 0 padding) and resets [B, T]."""
        if reset is not None and reset.dtype != torch.bool:
            raise InputError(f"reset is {reset.dtype}; give bool: true where both states are zeroed before a position.")
        if attention_mask is not None and not bool(((attention_mask == 0) | (attention_mask == 1)).all()):
            raise InputError(
                "attention_mask holds values other than 0 and 1; give 1 for a real token and 0 for padding."
            )
        if attention_mask is None or bool((attention_mask != 0).all()):
            return Compaction(None, None, None, reset, None)
        real = attention_mask != 0
        lengths = real.sum(1)
        order = torch.argsort((~real).to(torch.int8), dim=1, stable=True)
        inverse = torch.argsort(order, dim=1)
        trailing = None
        if reset is not None:
            # A reset on padding takes effect before the next real token: count resets up to each real token.
            counted = reset.cumsum(1).gather(1, order)
            before = torch.cat([torch.zeros_like(counted[:, :1]), counted[:, :-1]], dim=1)
            inside = torch.arange(reset.shape[1], device=reset.device) < lengths[:, None]
            at_last = torch.where(inside, counted, torch.zeros_like(counted)).amax(1)
            trailing = reset.sum(1) > at_last
            reset = (counted > before) & inside
        if bool((real[:, 1:] <= real[:, :-1]).all()):  # already right padding
            return Compaction(None, None, lengths, reset, trailing)
        return Compaction(order, inverse, lengths, reset, trailing)

    def pack(self, x: Tensor) -> Tensor:
        """[B, T, ...] in the order of the model: real positions first."""
        return x if self.order is None else _rearrange(x, self.order)

    def unpack(self, x: Any) -> Any:
        """[B, T, ...] (or a tuple of such) back in the order of the input."""
        if self.inverse is None:
            return x
        return tuple(_rearrange(t, self.inverse) for t in x) if isinstance(x, tuple) else _rearrange(x, self.inverse)


def _rearrange(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(1, order.view(*order.shape, *[1] * (x.dim() - 2)).expand(*order.shape, *x.shape[2:]))
