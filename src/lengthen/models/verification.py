"""Which library classes lengthen supports, each proven on tiny random models by the parity gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lengthen.errors import InputError
from lengthen.models.families import FAMILY_OF, KINDS
from lengthen.models.parity import check
from lengthen.models.tiny_models import TINY_MODELS, TinyModel, build_tiny_model
from lengthen.models.wrapping import wrap, wrapped_layers
from lengthen.results import CheckResult, SupportedClass, SupportTable, versions

PROPERTIES: dict[str, tuple[str, ...]] = {
    "initial state": ("segments", "token-by-token", "random-state", "rows", "state-dtype", "state-unchanged", "causal"),
    "gradients": ("gradient-into-state", "gradient-through-state", "train-mode"),
    "checkpointing": ("gradient-checkpointing",),
    "padding": ("left-padding", "right-padding", "padding-identity"),
    "packing": ("packing", "packing-with-padding", "reset-at-start"),
}
"""What a user asks of a class, and the checks of the parity gate that answer it."""


def verify_support(
    tiny_models: Iterable[TinyModel] = TINY_MODELS, *, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> SupportTable:
    """Builds every class of the installed libraries small, and checks it.

    A class with several tiny models has a property where all of them have it. A class that wrap() refuses is listed
    with its sentence.
    """
    present = [tiny for tiny in tiny_models if tiny.installed]
    rows: dict[str, SupportedClass] = {}
    refused: dict[str, str] = {}
    for i, tiny in enumerate(present):
        model = build_tiny_model(tiny, seed)
        title = type(model).__name__
        try:
            kinds = {(type(layer), binding.kind) for binding, layer in wrapped_layers(wrap(model))}
            result = check(model, seed=seed)
        except InputError as error:
            refused[title] = str(error)
            continue
        row = SupportedClass(
            library=type(model).__module__.split(".")[0],
            model=title,
            layers=sorted(f"{cls.__module__}.{cls.__qualname__}" for cls, _ in kinds),
            family="+".join(sorted({FAMILY_OF[kind] for _, kind in kinds})),
            kernels=sorted({KINDS[kind].kernel for _, kind in kinds}),
            verified=_verified(result),
        )
        key = f"{row.library}.{title}"
        if key in rows:
            row = _both(rows[key], row)
        rows[key] = row
        if progress is not None:
            progress(i + 1, len(present))
    return SupportTable(list(rows.values()), refused, versions())


def _verified(result: CheckResult) -> dict[str, bool]:
    passed = {check.name: check.passed for check in result.checks}
    return {name: all(passed.get(one, False) for one in wanted) for name, wanted in PROPERTIES.items()}


def _both(first: SupportedClass, second: SupportedClass) -> SupportedClass:
    return SupportedClass(
        first.library,
        first.model,
        sorted({*first.layers, *second.layers}),
        first.family,
        sorted({*first.kernels, *second.kernels}),
        {name: held and second.verified[name] for name, held in first.verified.items()},
    )
