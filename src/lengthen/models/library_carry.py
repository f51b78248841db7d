"""Is the state carried, and left alone? Questions to a library's own path about one sequence after another.

Each function runs the model through its own cache and measures one thing; None where the question does not apply.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lengthen.models.library_cache import CACHE_KEYWORDS, fork
from lengthen.models.library_subject import CUT, LENGTH, SHORT, Finding, Subject, error, in_training, largest_error

_SEGMENTS = ((7, 73), (65, 15), (2, 30, 48))  # shorter than a convolution, longer than a chunk, no multiples
_EFFECT_LOST = 0.5  # 0: a carried state moves the logits as much as token by token, 1: not at all


def weights_untouched(subject: Subject) -> Finding:
    """How many parameters a forward in train mode and one in eval mode change."""

    def norms() -> list[Tensor]:
        return [torch.linalg.vector_norm(p, dtype=torch.float64) for p in subject.model.parameters()]

    seen = [norms()]
    with in_training(subject.model):
        subject.whole(subject.short)
    seen.append(norms())
    subject.whole(subject.short)
    seen.append(norms())
    changed = sum(not (torch.equal(a, b) and torch.equal(b, c)) for a, b, c in zip(*seen, strict=True))
    return Finding(changed == 0, float(changed), 0.0)


def state_reachable(subject: Subject) -> Finding:
    output = subject.model(subject.short, use_cache=True)
    returned = any(getattr(output, name, None) is not None for name in CACHE_KEYWORDS)
    kept = subject.path.on_modules()
    return Finding(returned and not kept, detail=f"it lies in {', '.join(kept)}" if kept else "")


def fresh_start(subject: Subject) -> Finding:
    """A sequence read after another one, at once and token by token, against the same sequence read first."""
    path, tokens = subject.path, subject.short

    def stepped(cache: Any) -> Tensor:
        logits = []
        for token in tokens.split(1, dim=1):
            found, cache = path.run(token, cache)
            logits.append(found)
        return torch.cat(logits, dim=1)

    first = [subject.whole(tokens), stepped(subject.start())]
    subject.carried(subject.tokens[1:])
    after = [path.run(tokens, path.start())[0]]
    subject.carried(subject.tokens[1:])
    after.append(stepped(path.start()))
    return subject.within(largest_error(after, first))


def segments(subject: Subject) -> Finding:
    whole = subject.whole(subject.row)
    return subject.within(max(error(subject.pieces(subject.row, split)[0], whole) for split in _SEGMENTS))


def token_by_token(subject: Subject) -> Finding:
    whole = subject.whole(subject.short)
    return subject.within(error(subject.pieces(subject.short, [1] * SHORT)[0], whole))


def state_carried(subject: Subject) -> Finding | None:
    """Another sequence's recurrent state, given to a segment at once and token by token."""
    path = subject.path
    prefix, rest = subject.tokens.split([SHORT, LENGTH - SHORT], dim=1)
    own, other = subject.carried(prefix[:1]), subject.carried(prefix[1:])
    if not path.memory(own):
        return None
    donor = fork(own)
    for target, source in zip(path.memory(donor), path.memory(other), strict=True):
        target.tensor.copy_(source.tensor)

    def effect(lengths: list[int]) -> float:
        tokens = rest[:1, : sum(lengths)]
        changed, unchanged = (subject.pieces(tokens, lengths, fork(cache))[0] for cache in (donor, own))
        return error(changed, unchanged)

    stepped = effect([1] * 8)
    lost = max(0.0, 1 - effect([8]) / stepped) if stepped > 0 else 1.0
    return Finding(lost <= _EFFECT_LOST, lost, _EFFECT_LOST)


def positions_continue(subject: Subject) -> Finding | None:
    """A segment without position_ids against the same with position_ids that continue."""
    if "position_ids" not in subject.path.named:
        return None
    prefix, rest = subject.short.split([CUT, SHORT - CUT], dim=1)
    cache = subject.carried(prefix)
    if not any(item.kind == "attention" for item in subject.path.held(cache)):
        return None
    found, _ = subject.path.run(rest, cache)
    positions = torch.arange(CUT, SHORT, device=rest.device)[None]
    explicit, _ = subject.path.run(rest, subject.carried(prefix), position_ids=positions)
    return subject.within(error(found, explicit))


def in_place_update(subject: Subject) -> Finding | None:
    """The very tensors of a cache, before and after the next segment."""
    cache = subject.carried(subject.short[:, :CUT])
    held = [item.tensor for item in subject.path.held(cache) if item.kind in ("recurrent", "window")]
    if not held:
        return None
    before = [tensor.clone() for tensor in held]
    subject.path.run(subject.short[:, CUT:], cache)
    return Finding((change := largest_error(held, before)) == 0, change, 0.0)


def use_cache_false(subject: Subject) -> Finding | None:
    """What a cache holds, before and after a call that was told not to use one."""
    cache = subject.carried(subject.short[:, :CUT])
    before = subject.values(cache, "recurrent", "window")
    if not before:
        return None
    subject.path.run(subject.short[:, CUT:], cache, use_cache=False)
    change = largest_error(subject.values(cache, "recurrent", "window"), before)
    return Finding(change == 0, change, 0.0)


def swallowed_keyword(subject: Subject) -> Finding:
    """The cache under the names that other classes use."""
    path = subject.path
    prefix, rest = subject.short.split([CUT, SHORT - CUT], dim=1)
    right, _ = path.run(rest, subject.carried(prefix))
    errors = {}
    for name in CACHE_KEYWORDS:
        if name == path.keyword:
            continue
        cache = subject.carried(prefix)
        try:
            errors[name] = error(subject.model(rest, use_cache=True, **{name: cache}).logits, right)
        except (TypeError, ValueError):
            errors[name] = 0.0  # refused, so nobody is misled
    swallowed = [name for name, value in errors.items() if not value <= subject.tolerance]
    return subject.within(max(errors.values()), f"swallowed: {', '.join(swallowed)}" if swallowed else "")
