"""Which library classes lengthen supports, each proven on tiny random models by the parity gate."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import nn

from lengthen.errors import InputError
from lengthen.models.binding import is_language_model, wrapped_layers
from lengthen.models.families import FAMILY_OF, KINDS
from lengthen.models.parity import check
from lengthen.models.tiny_models import TINY_MODELS, TinyModel, build_tiny_model
from lengthen.models.tiny_models_fla import FLA_TINY_MODELS
from lengthen.models.wrapping import wrap
from lengthen.results import CheckResult, SupportedClass, SupportTable, versions

PROPERTIES: dict[str, tuple[str, ...]] = {
    "initial state": ("segments", "token-by-token", "random-state", "rows", "state-dtype", "state-unchanged", "causal"),
    "gradients": ("gradient-into-state", "gradient-through-state", "train-mode"),
    "checkpointing": ("gradient-checkpointing",),
    "padding": ("left-padding", "right-padding", "padding-identity"),
    "packing": ("packing", "packing-with-padding", "reset-at-start"),
}
"""What a user asks of a class, and the checks of the parity gate that answer it."""


CLASSIC = (nn.LSTM, nn.GRU, nn.RNN)
"""torch's own layers, which belong to no model class: each is verified behind a linear layer."""


def verify_support(
    tiny_models: Iterable[TinyModel] = TINY_MODELS + FLA_TINY_MODELS,
    layers: Sequence[type[nn.LSTM | nn.GRU | nn.RNN]] = CLASSIC,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> SupportTable:
    """Builds every class of the installed libraries small, and checks it.

    A property that is not a module's to have (gradient checkpointing of a bare layer) is left out. A class with several
    tiny models has a property where all of them have it. A class that wrap() or the gate refuses is listed with its
    sentence.
    """
    present = [tiny for tiny in tiny_models if tiny.installed]
    rows: dict[str, SupportedClass] = {}
    refused: dict[str, str] = {}
    for i, tiny in enumerate(present):
        model = build_tiny_model(tiny, seed)
        title = type(model).__name__
        try:
            row = _row(wrap(model), type(model).__module__.split(".")[0], title, check(model, seed=seed))
        except InputError as error:
            refused[title] = str(error)
            continue
        key = f"{row.library}.{title}"
        if key in rows:
            row = _both(rows[key], row)
        rows[key] = row
        if progress is not None:
            progress(i + 1, len(present))
    for layer in layers:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = nn.Sequential(nn.Linear(5, 6), layer(6, 12, num_layers=2, batch_first=True))
        title = f"nn.{layer.__name__}"
        rows[title] = _row(wrap(module), "torch", title, check(module, inputs=torch.randn(1, 2, 5), seed=seed))
    return SupportTable(list(rows.values()), refused, _library_versions())


def _library_versions() -> dict[str, str]:
    found = {name: versions()[name] for name in ("torch", "transformers")}
    with contextlib.suppress(PackageNotFoundError):
        found["fla"] = version("flash-linear-attention")
    return found


def _row(wrapped: nn.Module, library: str, title: str, result: CheckResult) -> SupportedClass:
    kinds = {(type(layer), binding.kind) for binding, layer in wrapped_layers(wrapped)}
    return SupportedClass(
        library=library,
        model=title,
        layers=sorted(f"{cls.__module__}.{cls.__qualname__}" for cls, _ in kinds),
        family="+".join(sorted({FAMILY_OF[kind] for _, kind in kinds})),
        kernels=sorted({KINDS[kind].kernel for _, kind in kinds}),
        verified=_verified(result, is_language_model(wrapped)),
    )


def _verified(result: CheckResult, language_model: bool) -> dict[str, bool]:
    passed = {check.name: check.passed for check in result.checks}
    asked = {name: wanted for name, wanted in PROPERTIES.items() if language_model or name != "checkpointing"}
    return {name: all(passed.get(one, False) for one in wanted) for name, wanted in asked.items()}


def _both(first: SupportedClass, second: SupportedClass) -> SupportedClass:
    return SupportedClass(
        first.library,
        first.model,
        sorted({*first.layers, *second.layers}),
        first.family,
        sorted({*first.kernels, *second.kernels}),
        {name: held and second.verified[name] for name, held in first.verified.items()},
    )
