"""Do rows and documents of one batch keep apart? Questions to a library's own path about packing and padding.

Each function runs the model through its own cache and measures one thing; None where the question does not apply.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lengthen.models.library_subject import CUT, SHORT, Finding, Subject, error, largest_error, shape_detail


def row_independence(subject: Subject) -> Finding:
    """Two rows together against each alone: a segment, then single tokens."""
    lengths = [CUT, 1, 1]
    tokens = subject.tokens[:, : sum(lengths)]
    alone = torch.cat([subject.pieces(row, lengths)[0] for row in tokens.split(1)])
    together = subject.pieces(tokens, lengths)[0]
    return subject.within(error(together, alone), shape_detail(together, alone))


def packed_rows(subject: Subject) -> Finding | None:
    """A document after another in one row, against the document alone, in each way in which forward can be told."""
    lengths = [CUT, SHORT - CUT]
    device = subject.model.device
    bounds = torch.tensor([0, CUT, SHORT], dtype=torch.int32, device=device)
    restart = torch.cat([torch.arange(n, device=device) for n in lengths])[None]
    index = torch.tensor([[0] * lengths[0] + [1] * lengths[1]], dtype=torch.int32, device=device)
    flash = {
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }
    ways: dict[str, dict[str, Any]] = {
        "position_ids": {"position_ids": restart},
        "seq_idx": {"position_ids": restart, "seq_idx": index},
        "cu_seq_lens": {"position_ids": restart, **flash},
    }
    ways = {way: told for way, told in ways.items() if all(subject.path.accepts(name) for name in told)}
    if not ways:
        return None
    alone = subject.whole(subject.short[:, CUT:], use_cache=False)
    errors, refused = {}, []
    for way, told in ways.items():
        try:
            errors[way] = error(subject.path.run(subject.short, use_cache=False, **told)[0][:, CUT:], alone)
        except (TypeError, ValueError):
            refused.append(way)
    leaks = [way for way, value in errors.items() if not value <= subject.tolerance]
    details = [f"leaks with {', '.join(leaks)}"] * bool(leaks) + [f"refused with {', '.join(refused)}"] * bool(refused)
    return subject.within(max(errors.values(), default=0.0), "; ".join(details))


def _padded(subject: Subject, left: bool) -> tuple[Tensor, Tensor, Tensor]:
    """A full row and a padded one [2, T], the mask [2, T], and the padded row alone [1, T - pads]."""
    alone = subject.row[:, CUT:SHORT]
    pads = alone.new_full((1, CUT), subject.pad)
    padded = torch.cat([pads, alone] if left else [alone, pads], dim=1)
    tokens = torch.cat([subject.short, padded])
    mask = torch.ones_like(tokens)
    mask[1, :CUT] = int(not left)
    if not left:
        mask[1, alone.shape[1] :] = 0
    return tokens, mask, alone


def left_padding(subject: Subject) -> Finding | None:
    if not subject.path.accepts("attention_mask"):
        return None
    tokens, mask, alone = _padded(subject, left=True)
    found = subject.whole(tokens, attention_mask=mask)[1:, CUT:]
    return subject.within(error(found, subject.whole(alone)))


def left_padding_without_mask(subject: Subject) -> Finding:
    tokens, _, alone = _padded(subject, left=True)
    return subject.within(error(subject.whole(tokens)[1:, CUT:], subject.whole(alone)))


def right_padding(subject: Subject) -> Finding | None:
    """The cached state after a row and its pads, against the state after the row."""
    path = subject.path
    if not path.accepts("attention_mask"):
        return None
    tokens, mask, alone = _padded(subject, left=False)
    _, cache = path.run(tokens, subject.start(), attention_mask=mask)
    errors = {}
    for kind in ("recurrent", "window"):
        found = [tensor[1:] for tensor in subject.values(cache, kind)]
        errors[kind] = largest_error(found, subject.values(subject.carried(alone), kind))
    if not path.memory(cache):
        return None
    off = [f"{kind} state off by {value:.2g}" for kind, value in errors.items() if value > subject.tolerance]
    return subject.within(max(errors.values()), ", ".join(off))
