"""The table of layer families, a row each: which library layers lengthen can run."""

from __future__ import annotations

from torch import nn

from lengthen.models import delta_rules, lightning, mamba1, mamba2, rg_lru
from lengthen.models.family import Family, LayerKind

FAMILIES: tuple[Family, ...] = (
    mamba1.FAMILY,
    mamba2.FAMILY,
    delta_rules.FAMILY,
    lightning.FAMILY,
    rg_lru.FAMILY,
)

KINDS: dict[str, LayerKind] = {kind.name: kind for family in FAMILIES for kind in family.kinds}
"""Kind of layer by name."""

FAMILY_OF: dict[str, str] = {kind.name: family.name for family in FAMILIES for kind in family.kinds}
"""Family's name by the name of a kind."""

_KIND_OF_CLASS = {layer: kind.name for kind in KINDS.values() for layer in kind.layers}


def kind_of(layer: nn.Module) -> LayerKind | None:
    """The kind of layer that this is, or None where no family runs it."""
    for cls in type(layer).__mro__:
        name = _KIND_OF_CLASS.get(f"{cls.__module__}.{cls.__qualname__}")
        if name is not None:
            return KINDS[name]
    return None
