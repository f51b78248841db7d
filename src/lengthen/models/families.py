"""The table of layer families, a row each: which library layers lengthen can run."""

from __future__ import annotations

from torch import nn

from lengthen.errors import InputError
from lengthen.models import (
    classic,
    delta_rules,
    gla,
    hgrn,
    lightning,
    mamba1,
    mamba2,
    retnet,
    rg_lru,
    rwkv4,
    rwkv6,
    rwkv7,
    stateful_layer,
    xlstm,
)
from lengthen.models.family import Family, LayerKind

FAMILIES: tuple[Family, ...] = (
    mamba1.FAMILY,
    mamba2.FAMILY,
    delta_rules.FAMILY,
    lightning.FAMILY,
    gla.FAMILY,
    retnet.FAMILY,
    hgrn.FAMILY,
    rwkv6.FAMILY,
    rwkv7.FAMILY,
    rg_lru.FAMILY,
    rwkv4.FAMILY,
    xlstm.FAMILY,
    classic.FAMILY,
    stateful_layer.FAMILY,
)

KINDS: dict[str, LayerKind] = {}
"""Kind of layer by name."""

FAMILY_OF: dict[str, str] = {}
"""Family's name by the name of a kind."""

_KIND_OF_CLASS: dict[str, str] = {}


def register_family(family: Family) -> None:
    """Lets wrap() run one more layer family, for the rest of this process.

    Raises InputError where the name of a kind, or one of its layer classes, is taken.
    """
    for kind in family.kinds:
        taken = [name for name in kind.layers if name in _KIND_OF_CLASS]
        if kind.name in KINDS or taken:
            raise InputError(
                f"The family {family.name} cannot be registered: {taken[0] if taken else f'the kind {kind.name}'} belongs "
                "to a family already; choose another."
            )
    for kind in family.kinds:
        KINDS[kind.name], FAMILY_OF[kind.name] = kind, family.name
        _KIND_OF_CLASS.update(dict.fromkeys(kind.layers, kind.name))


for _family in FAMILIES:
    register_family(_family)


def kind_of(layer: nn.Module) -> LayerKind | None:
    """The kind of layer that this is, or None where no family runs it."""
    for cls in type(layer).__mro__:
        name = _KIND_OF_CLASS.get(f"{cls.__module__}.{cls.__qualname__}")
        if name is not None:
            return KINDS[name]
    return stateful_layer.FAMILY.kinds[0] if isinstance(layer, stateful_layer.StatefulLayer) else None
