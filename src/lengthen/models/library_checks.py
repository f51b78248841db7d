"""The questions put to a library's own path: each runs the model through its own cache and measures one thing.

B rows, T positions. Errors are max|a - r| / max|r|, of logits or of cached tensors, against the run each question
names. A question that does not apply to a class answers None.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lengthen.models.library_cache import CACHE_KEYWORDS, HeldTensor, LibraryPath, fork

_LENGTH = 80  # past the 64-position chunks of the library's delta rules
_SEGMENTS = ((7, 73), (65, 15), (2, 30, 48))  # shorter than a convolution, longer than a chunk, no multiples
_SHORT = 24  # positions where no chunk boundary is needed
_CUT = 11
_EFFECT_LOST = 0.5  # 0: a carried state moves the logits as much as token by token, 1: not at all

# Another order of operations rounds a few float32 layers to 1e-6; the faults found are 1e-3 and more.
_TOLERANCE = {torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Finding:
    """What a question found: the number, its limit, whether that is well, and what the number does not say."""

    passed: bool
    value: float | None = None
    tolerance: float | None = None
    detail: str = ""


class Subject:
    """A model in eval mode on its own path, with tokens to read."""

    def __init__(self, path: LibraryPath, seed: int) -> None:
        model = path.model
        self.path, self.model = path, model
        self.tolerance = _TOLERANCE.get(model.dtype, 1e-4)
        generator = torch.Generator().manual_seed(seed)
        vocabulary = model.get_input_embeddings().num_embeddings
        self.pad = getattr(model.config.get_text_config(), "pad_token_id", None) or 0
        tokens = torch.randint(min(3, vocabulary - 1), vocabulary, (2, _LENGTH), generator=generator)
        self.tokens = tokens.to(model.device)
        self.row, self.short = self.tokens[:1], self.tokens[:1, :_SHORT]

    def within(self, value: float, detail: str = "") -> Finding:
        """A finding that is well up to the tolerance of the model's dtype (and not where value is NaN)."""
        return Finding(value <= self.tolerance, value, self.tolerance, detail)

    def whole(self, tokens: Tensor, **extra: Any) -> Tensor:
        """Logits of one run from zero."""
        return self.path.run(tokens, **extra)[0]

    def pieces(self, tokens: Tensor, lengths: Sequence[int], cache: Any = None) -> tuple[Tensor, Any]:
        """Logits of tokens read in segments of the given lengths, through one cache, and that cache."""
        cache = self.path.start() if cache is None else cache
        logits = []
        for segment in tokens.split(list(lengths), dim=1):
            found, cache = self.path.run(segment, cache)
            logits.append(found)
        return torch.cat(logits, dim=1), cache

    def carried(self, tokens: Tensor) -> Any:
        """The cache after tokens, read in one run without gradients."""
        with torch.no_grad():
            return self.path.run(tokens, self.path.start())[1]

    def embeddings(self, tokens: Tensor) -> Tensor:
        """The embeddings [B, T, D] of tokens, as a leaf that takes gradients."""
        return self.model.get_input_embeddings()(tokens).detach().requires_grad_()

    def values(self, cache: Any, *kinds: str) -> list[Tensor]:
        """Copies of the cached tensors of the given kinds."""
        return [item.tensor.detach().clone() for item in self.path.held(cache) if item.kind in kinds]


def error(found: Tensor, reference: Tensor) -> float:
    """max|a - r| / max|r|; infinite where the shapes differ."""
    if found.shape != reference.shape:
        return float("inf")
    largest = reference.detach().double().abs().max()
    return float((found.detach().double() - reference.detach().double()).abs().max() / largest.clamp(min=1e-30))


def largest_error(found: Sequence[Tensor], reference: Sequence[Tensor]) -> float:
    """The largest error() of two lists of tensors."""
    return max((error(a, r) for a, r in zip(found, reference, strict=True)), default=0.0)


def _shape_detail(found: Tensor, reference: Tensor) -> str:
    if found.shape == reference.shape:
        return ""
    return f"logits of shape {tuple(found.shape)} came back instead of {tuple(reference.shape)}"


def weights_untouched(subject: Subject) -> Finding:
    """How many parameters a forward in train mode and one in eval mode change."""

    def norms() -> list[Tensor]:
        return [torch.linalg.vector_norm(p, dtype=torch.float64) for p in subject.model.parameters()]

    seen = [norms()]
    with _training(subject.model):
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


def segments(subject: Subject) -> Finding:
    whole = subject.whole(subject.row)
    return subject.within(max(error(subject.pieces(subject.row, split)[0], whole) for split in _SEGMENTS))


def token_by_token(subject: Subject) -> Finding:
    whole = subject.whole(subject.short)
    return subject.within(error(subject.pieces(subject.short, [1] * _SHORT)[0], whole))


def row_independence(subject: Subject) -> Finding:
    """Two rows together against each alone: a segment, then single tokens."""
    lengths = [_CUT, 1, 1]
    tokens = subject.tokens[:, : sum(lengths)]
    alone = torch.cat([subject.pieces(row, lengths)[0] for row in tokens.split(1)])
    together = subject.pieces(tokens, lengths)[0]
    return subject.within(error(together, alone), _shape_detail(together, alone))


def state_carried(subject: Subject) -> Finding | None:
    """Another sequence's recurrent state, given to a segment at once and token by token."""
    path = subject.path
    prefix, rest = subject.tokens.split([_SHORT, _LENGTH - _SHORT], dim=1)
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
    prefix, rest = subject.short.split([_CUT, _SHORT - _CUT], dim=1)
    cache = subject.carried(prefix)
    if not any(item.kind == "attention" for item in subject.path.held(cache)):
        return None
    found, _ = subject.path.run(rest, cache)
    positions = torch.arange(_CUT, _SHORT, device=rest.device)[None]
    explicit, _ = subject.path.run(rest, subject.carried(prefix), position_ids=positions)
    return subject.within(error(found, explicit))


def in_place_update(subject: Subject) -> Finding | None:
    """The very tensors of a cache, before and after the next segment."""
    cache = subject.carried(subject.short[:, :_CUT])
    held = [item.tensor for item in subject.path.held(cache) if item.kind in ("recurrent", "window")]
    if not held:
        return None
    before = [tensor.clone() for tensor in held]
    subject.path.run(subject.short[:, _CUT:], cache)
    return Finding((change := largest_error(held, before)) == 0, change, 0.0)


def use_cache_false(subject: Subject) -> Finding | None:
    """What a cache holds, before and after a call that was told not to use one."""
    cache = subject.carried(subject.short[:, :_CUT])
    before = subject.values(cache, "recurrent", "window")
    if not before:
        return None
    subject.path.run(subject.short[:, _CUT:], cache, use_cache=False)
    change = largest_error(subject.values(cache, "recurrent", "window"), before)
    return Finding(change == 0, change, 0.0)


def gradient_through_state(subject: Subject) -> Finding:
    """Gradient of the second segment's logits to the first segment's embeddings, against one run."""

    def gradient(lengths: list[int]) -> Tensor:
        leaf = subject.embeddings(subject.short)
        logits, _ = subject.pieces(leaf, lengths)
        return _gradient(leaf, logits[:, _CUT:])[:, :_CUT]

    with torch.enable_grad():
        return subject.within(error(gradient([_CUT, _SHORT - _CUT]), gradient([_SHORT])))


def train_from_state(subject: Subject) -> Finding:
    """One backward of a segment that starts from a detached state."""
    cache = subject.carried(subject.short[:, :_CUT])
    with _training(subject.model), torch.enable_grad():
        leaf = subject.embeddings(subject.short[:, _CUT:])
        gradient = _gradient(leaf, subject.path.run(leaf, cache)[0])
    return Finding(bool(gradient.isfinite().all()))


def train_mode_state(subject: Subject) -> Finding:
    subject.path.forget()
    with _training(subject.model):
        output = subject.model(subject.short)
    returned = any(getattr(output, name, None) is not None for name in CACHE_KEYWORDS)
    return Finding(returned or bool(subject.path.on_modules()))


def gradient_checkpointing(subject: Subject) -> Finding | None:
    """Logits and gradient of a segment with a carried state, with and without checkpointing, in train mode."""
    model, path = subject.model, subject.path
    if not model.supports_gradient_checkpointing:
        return None
    prefix, rest = subject.short.split([_CUT, _SHORT - _CUT], dim=1)
    leaf = subject.embeddings(rest)

    def logits(carried: bool) -> Tensor:
        start = subject.carried(prefix) if carried else path.start()
        torch.manual_seed(0)  # the same dropout in every run
        return path.run(leaf, start)[0]

    with torch.random.fork_rng(devices=[]), _training(model), torch.enable_grad():
        plain, zero = logits(carried=True), logits(carried=False)
        with _checkpointing(model):
            checkpointed = logits(carried=True)
            value = error(checkpointed, plain)
            if value > subject.tolerance:
                dropped = torch.equal(checkpointed, zero)
                return subject.within(value, "it equals the run from zero exactly" if dropped else "")
            try:
                reference = _gradient(leaf, plain)
            except RuntimeError:
                return subject.within(value)  # this path has no gradient without checkpointing either
            value = error(_gradient(leaf, checkpointed), reference)
            return subject.within(value, "the gradient; the logits agree" if value > subject.tolerance else "")


def packed_rows(subject: Subject) -> Finding | None:
    """A document after another in one row, against the document alone, in each way in which forward can be told."""
    lengths = [_CUT, _SHORT - _CUT]
    device = subject.model.device
    bounds = torch.tensor([0, _CUT, _SHORT], dtype=torch.int32, device=device)
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
    alone = subject.whole(subject.short[:, _CUT:], use_cache=False)
    errors, refused = {}, []
    for way, told in ways.items():
        try:
            errors[way] = error(subject.path.run(subject.short, use_cache=False, **told)[0][:, _CUT:], alone)
        except (TypeError, ValueError):
            refused.append(way)
    leaks = [way for way, value in errors.items() if not value <= subject.tolerance]
    details = [f"leaks with {', '.join(leaks)}"] * bool(leaks) + [f"refused with {', '.join(refused)}"] * bool(refused)
    return subject.within(max(errors.values(), default=0.0), "; ".join(details))


def swallowed_keyword(subject: Subject) -> Finding:
    """The cache under the names that other classes use."""
    path = subject.path
    prefix, rest = subject.short.split([_CUT, _SHORT - _CUT], dim=1)
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


def _padded(subject: Subject, left: bool) -> tuple[Tensor, Tensor, Tensor]:
    """A full row and a padded one [2, T], the mask [2, T], and the padded row alone [1, T - pads]."""
    alone = subject.row[:, _CUT:_SHORT]
    pads = alone.new_full((1, _CUT), subject.pad)
    padded = torch.cat([pads, alone] if left else [alone, pads], dim=1)
    tokens = torch.cat([subject.short, padded])
    mask = torch.ones_like(tokens)
    mask[1, :_CUT] = int(not left)
    if not left:
        mask[1, alone.shape[1] :] = 0
    return tokens, mask, alone


def left_padding(subject: Subject) -> Finding | None:
    if not subject.path.accepts("attention_mask"):
        return None
    tokens, mask, alone = _padded(subject, left=True)
    found = subject.whole(tokens, attention_mask=mask)[1:, _CUT:]
    return subject.within(error(found, subject.whole(alone)))


def left_padding_without_mask(subject: Subject) -> Finding:
    tokens, _, alone = _padded(subject, left=True)
    return subject.within(error(subject.whole(tokens)[1:, _CUT:], subject.whole(alone)))


def right_padding(subject: Subject) -> Finding | None:
    """The cached state after a row and its pads, against the state after the row."""
    path = subject.path
    if not path.accepts("attention_mask"):
        return None
    tokens, mask, alone = _padded(subject, left=False)
    _, cache = path.run(tokens, path.start(), attention_mask=mask)
    errors = {}
    for kind in ("recurrent", "window"):
        found = [tensor[1:] for tensor in subject.values(cache, kind)]
        errors[kind] = largest_error(found, subject.values(subject.carried(alone), kind))
    if not path.memory(cache):
        return None
    off = [f"{kind} state off by {value:.2g}" for kind, value in errors.items() if value > subject.tolerance]
    return subject.within(max(errors.values()), ", ".join(off))


def state_dtype(subject: Subject) -> Finding | None:
    """The machine epsilon of the recurrent state of the model in bfloat16 (in its own dtype if that is half)."""
    kept = getattr(subject.model, "_keep_in_fp32_modules", None) or ()
    tensors = dict(subject.model.named_parameters()) | {  # each once: what a checkpoint in bfloat16 would hold
        name: tensor for name, tensor in subject.model.named_buffers() if name in subject.model.state_dict()
    }
    halves = {
        name: tensor.to(torch.bfloat16)
        for name, tensor in tensors.items()
        if tensor.dtype == torch.float32 and not any(part in name for part in kept)
    }
    inputs = {"input_ids": subject.short, "use_cache": True}
    output = torch.func.functional_call(subject.model, halves, (), inputs)
    cache = next((found for name in CACHE_KEYWORDS if (found := getattr(output, name, None)) is not None), None)
    memory: list[HeldTensor] = [] if cache is None else subject.path.memory(cache)
    if not any(item.kind == "recurrent" for item in memory):
        return None
    coarsest, single = max(torch.finfo(item.tensor.dtype).eps for item in memory), torch.finfo(torch.float32).eps
    return Finding(coarsest <= single, coarsest, single)


def _objective(logits: Tensor) -> Tensor:
    """A fixed random weighting of logits: a scalar that no symmetry makes flat."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(logits.shape, generator=generator).to(logits.device)
    return (logits.float() * weights).sum()


def _gradient(leaf: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(_objective(logits), leaf)[0]


@contextlib.contextmanager
def _training(model: PreTrainedModel) -> Iterator[None]:
    model.train()
    try:
        yield
    finally:
        model.eval()


@contextlib.contextmanager
def _checkpointing(model: PreTrainedModel) -> Iterator[None]:
    before = model.is_gradient_checkpointing
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    try:
        yield
    finally:
        if not before:
            model.gradient_checkpointing_disable()
