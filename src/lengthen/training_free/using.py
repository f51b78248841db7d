"""A model used under one method for a whole command, which goes on under the same fit where it was interrupted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lengthen.data import load_corpus
from lengthen.data.loading import Source
from lengthen.errors import InputError
from lengthen.streaming import require_streamable
from lengthen.training_free.fitting import Calibration, FittedMethod, load_fitted
from lengthen.training_free.names import method_of
from lengthen.training_free.splits import calibration_from

FILE = "method.json"
"""What a folder with a fit holds."""
LENGTHS = {
    "train_context": frozenset({"train-context", "calibration", "gradients"}),
    "length": frozenset({"length", "long-calibration"}),
}
"""A length that a fit may depend on -> what a method needs that does."""


def fitted_for(
    model: nn.Module,
    method: str,
    *,
    train_context: int | None = None,
    length: int | None = None,
    calibration: Source | None = None,
    tokenizer: Any = None,
    seed: int = 0,
) -> FittedMethod:
    """A method fitted to a model: NAME:setting=value,setting=value, or a folder that holds a fit.

    train_context, length: T0 and L, where the method needs them. calibration: text to fit on, where it needs some, other
    than what the model is judged by. Raises InputError where something is missing, or for a fit to other weights.
    """
    if (Path(method) / FILE).exists():
        return load_fitted(method)
    chosen = method_of(method)
    given = Calibration(train_context, length, seed=seed)
    if calibration is not None and train_context is not None:
        corpus = load_corpus(calibration, tokenizer or "bytes")
        given = calibration_from(corpus, chosen, train_context=train_context, length=length or train_context, seed=seed)
    return chosen.fit(model, given)


@contextmanager
def used(
    model: nn.Module,
    method: str | None,
    *,
    streamed: bool,
    kept: Path | None = None,
    resume: bool = False,
    **fit: Any,
) -> Iterator[FittedMethod | None]:
    """Lets the model run under a method (none where None) while this lasts; fit: as in fitted_for.

    streamed: whether it is a text's losses that are wanted, which not every method allows. kept: a folder to keep the fit
    in. resume: go on under the fit that lies there. Raises InputError as fitted_for does, and where another method lies
    there.
    """
    began = load_fitted(kept) if resume and kept is not None and (kept / FILE).exists() else None
    if method is None:
        if began is not None:
            raise InputError(f"{kept} says that the run was begun under {began.method.name}; name it again.")
        yield None
        return
    fitted = began or fitted_for(model, method, **fit)
    if began is not None and not _is_of(began, method, fit):
        lengths = [f"a {name.replace('_', ' ')} of {getattr(began, name)}" for name in _lengths_of(began)]
        told = f", fitted for {' and '.join(lengths)}" if lengths else ""
        told += ", on the calibration text given then" if began.data else ""
        raise InputError(
            f"The run was begun under {began.method}{told}; go on under it, or start again without resuming."
        )
    with fitted.apply(model):
        if streamed:
            require_streamable(model)
        if kept is not None and began is None:
            fitted.save(kept)
        yield fitted


def _is_of(fitted: FittedMethod, method: str, given: Mapping[str, Any]) -> bool:
    """Whether a fit is what this method, named or a folder with a fit, would give."""
    if (Path(method) / FILE).exists():
        same = load_fitted(method)
        return (
            (same.method, same.weights) == (fitted.method, fitted.weights)
            and same.tensors.keys() == fitted.tensors.keys()
            and all(torch.equal(same.tensors[name], tensor) for name, tensor in fitted.tensors.items())
        )
    same_lengths = all(given.get(name) in (None, getattr(fitted, name)) for name in _lengths_of(fitted))
    if fitted.method != method_of(method) or not same_lengths:
        return False
    text = given.get("calibration")
    if text is None or not fitted.data:
        return True
    return load_corpus(text, given.get("tokenizer") or "bytes").fingerprint == fitted.data


def _lengths_of(fitted: FittedMethod) -> list[str]:
    """Which of T0 and L a fit depends on."""
    return [name for name, needs in LENGTHS.items() if needs & fitted.method.needs]
