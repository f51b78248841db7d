"""flash-linear-attention's models, which transformers' automatic classes know once fla is imported."""

from __future__ import annotations

import importlib
import json
import warnings
from pathlib import Path

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from lengthen.errors import InputError

MODEL_TYPES = frozenset(
    {"delta_net", "gated_deltanet", "gla", "hgrn", "hgrn2", "kda", "linear_attn", "retnet", "rwkv6", "rwkv7"}
)
"""What config.json calls the models of fla that lengthen runs and transformers has no class for."""


def import_fla_for(directory: Path) -> None:
    """Imports fla where the model in a directory is one of MODEL_TYPES.

    Raises InputError where it is and fla cannot be imported.
    """
    kind = json.loads((directory / "config.json").read_text(encoding="utf-8")).get("model_type")
    if kind in CONFIG_MAPPING or kind not in MODEL_TYPES:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("fla")
    except ImportError as error:
        raise InputError(
            f"{directory} holds a {kind} model of flash-linear-attention, which cannot be imported ({error}); "
            "pip install 'lengthen[fla]'."
        ) from None
