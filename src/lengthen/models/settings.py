"""One setting under two names: how a library's config.json and transformers' configuration correspond."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from lengthen.errors import InputError, one_line

# Parts of the Mamba-2 layer that transformers' class lacks, with the value that means "not used".
OPTIONAL_PARTS = {"D_has_hdim": False, "rmsnorm": True, "norm_before_gate": False}


@dataclass(frozen=True)
class Field:
    """A setting: its name in the other library, in transformers, and the value where the other's file has none."""

    theirs: str
    ours: str
    default: Any

    def of(self, config: PreTrainedConfig) -> Any:
        """The setting's value in a configuration of transformers; a pair as a tuple, however it was stored."""
        value = getattr(config, self.ours)
        return tuple(value) if isinstance(value, list) else value


def library_config(kind: type[PreTrainedConfig], values: Mapping[str, Any], where: Path) -> PreTrainedConfig:
    """A configuration of transformers with these values; Mamba-2's number of heads follows from its other sizes.

    Raises InputError where transformers finds the values inconsistent or of a wrong type.
    """
    try:
        if kind.model_type == "mamba2":
            values = {**values, "num_heads": values["expand"] * values["hidden_size"] // values["head_dim"]}
        return kind(**values)
    except Exception as error:  # transformers' validation raises several kinds
        raise InputError(
            f"{where / 'config.json'} does not describe a {kind.model_type} model ({one_line(error)})."
        ) from None


def refuse_optional_parts(options: Mapping[str, Any], where: Path) -> None:
    """Raises InputError where a Mamba-2 layer uses a part that transformers' class lacks."""
    for name, unused in OPTIONAL_PARTS.items():
        if options.get(name, unused) != unused:
            raise InputError(
                f"{where} has {name} {options[name]}, which transformers' Mamba2 does not have; only models with "
                f"{unused} can be read."
            )
