"""Can one train from a carried state? Questions to a library's own path about gradients, train mode and dtypes.

Each function runs the model through its own cache and measures one thing; None where the question does not apply.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lengthen.models.library_cache import CACHE_KEYWORDS, HeldTensor
from lengthen.models.library_subject import CUT, SHORT, Finding, Subject, error, in_training


def gradient_through_state(subject: Subject) -> Finding:
    """Gradient of the second segment's logits to the first segment's embeddings, against one run."""

    def gradient(lengths: list[int]) -> Tensor:
        leaf = subject.embeddings(subject.short)
        logits, _ = subject.pieces(leaf, lengths)
        return _gradient(leaf, logits[:, CUT:])[:, :CUT]

    with torch.enable_grad():
        return subject.within(error(gradient([CUT, SHORT - CUT]), gradient([SHORT])))


def train_from_state(subject: Subject) -> Finding:
    """One backward of a segment that starts from a detached state."""
    cache = subject.carried(subject.short[:, :CUT])
    with in_training(subject.model), torch.enable_grad():
        leaf = subject.embeddings(subject.short[:, CUT:])
        gradient = _gradient(leaf, subject.path.run(leaf, cache)[0])
    return Finding(bool(gradient.isfinite().all()))


def train_mode_state(subject: Subject) -> Finding:
    subject.path.forget()
    with in_training(subject.model):
        output = subject.model(subject.short)
    returned = any(getattr(output, name, None) is not None for name in CACHE_KEYWORDS)
    return Finding(returned or bool(subject.path.on_modules()))


def gradient_checkpointing(subject: Subject) -> Finding | None:
    """Logits and gradient of a segment with a carried state, with and without checkpointing, in train mode."""
    model, path = subject.model, subject.path
    if not model.supports_gradient_checkpointing:
        return None
    prefix, rest = subject.short.split([CUT, SHORT - CUT], dim=1)
    leaf = subject.embeddings(rest)

    def logits(carried: bool) -> Tensor:
        start = subject.carried(prefix) if carried else subject.start()
        torch.manual_seed(0)  # the same dropout in every run
        return path.run(leaf, start)[0]

    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), in_training(model), torch.enable_grad():
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


def state_dtype(subject: Subject) -> Finding | None:
    """The machine epsilon of the recurrent state of the model in bfloat16 (in its own dtype if that is half)."""
    kept = getattr(subject.model, "_keep_in_fp32_modules", None) or ()
    saved = subject.model.state_dict().keys()
    buffers = {name: tensor for name, tensor in subject.model.named_buffers() if name in saved}
    tensors = dict(subject.model.named_parameters()) | buffers  # each once: what a bfloat16 checkpoint holds
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
def _checkpointing(model: PreTrainedModel) -> Iterator[None]:
    before = model.is_activation_checkpointing
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    try:
        yield
    finally:
        if not before:
            model.activation_checkpointing_disable()
