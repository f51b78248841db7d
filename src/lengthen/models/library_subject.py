"""What a library's path is judged with: the model and its tokens, a finding, and the error of two tensors.

B rows, T positions. Errors are max|a - r| / max|r|, of logits or of cached tensors, against the run a check names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lengthen.models.library_cache import LibraryPath

LENGTH = 80  # past the 64-position chunks of the library's delta rules
SHORT = 24  # positions where no chunk boundary is needed
CUT = 11  # where those are cut: longer than a convolution, no multiple of a chunk

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
        embeddings: Any = model.get_input_embeddings()
        vocabulary = embeddings.num_embeddings
        self.pad = getattr(model.config.get_text_config(), "pad_token_id", None) or 0
        tokens = torch.randint(min(3, vocabulary - 1), vocabulary, (2, LENGTH), generator=generator)
        self.tokens = tokens.to(model.device)
        self.row, self.short = self.tokens[:1], self.tokens[:1, :SHORT]

    def within(self, value: float, detail: str = "") -> Finding:
        """A finding that is well up to the tolerance of the model's dtype (and not where value is NaN)."""
        return Finding(value <= self.tolerance, value, self.tolerance, detail)

    def whole(self, tokens: Tensor, **extra: Any) -> Tensor:
        """Logits of one run from zero."""
        self.path.forget()
        return self.path.run(tokens, **extra)[0]

    def start(self) -> Any:
        """What to hand to the first call of a sequence, with nothing left of the sequence before."""
        self.path.forget()
        return self.path.start()

    def pieces(self, tokens: Tensor, lengths: Sequence[int], cache: Any = None) -> tuple[Tensor, Any]:
        """Logits of tokens read in segments of the given lengths, through one cache, and that cache."""
        cache = self.start() if cache is None else cache
        logits = []
        for segment in tokens.split(list(lengths), dim=1):
            found, cache = self.path.run(segment, cache)
            logits.append(found)
        return torch.cat(logits, dim=1), cache

    def carried(self, tokens: Tensor) -> Any:
        """The cache after tokens, read in one run without gradients."""
        with torch.no_grad():
            return self.path.run(tokens, self.start())[1]

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


def shape_detail(found: Tensor, reference: Tensor) -> str:
    """What to say of logits whose shape is not the reference's."""
    if found.shape == reference.shape:
        return ""
    return f"logits of shape {tuple(found.shape)} came back instead of {tuple(reference.shape)}"


@contextlib.contextmanager
def in_training(model: PreTrainedModel) -> Iterator[None]:
    """Train mode, and back to eval mode."""
    model.train()
    try:
        yield
    finally:
        model.eval()
