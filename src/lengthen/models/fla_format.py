"""The checkpoint format of flash-linear-attention's Mamba and Mamba2 models, told in the words of transformers, and back.

fla's classes have the names of tensors and the model types of transformers' own, so that only config.json tells them
apart: it has "norm_eps" where transformers' has "layer_norm_epsilon".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import Mamba2Config, MambaConfig, PreTrainedConfig

from lengthen.models.settings import Field, library_config, refuse_optional_parts

MODEL = (
    Field("vocab_size", "vocab_size", 32000),
    Field("hidden_size", "hidden_size", 2048),
    Field("num_hidden_layers", "num_hidden_layers", 48),
    Field("norm_eps", "layer_norm_epsilon", 1e-5),
    Field("pad_token_id", "pad_token_id", 0),
    Field("bos_token_id", "bos_token_id", 1),
    Field("eos_token_id", "eos_token_id", 2),
    Field("expand", "expand", 2),
    Field("conv_kernel", "conv_kernel", 4),
    Field("use_bias", "use_bias", False),
    Field("use_conv_bias", "use_conv_bias", True),
    Field("hidden_act", "hidden_act", "silu"),
    Field("initializer_range", "initializer_range", 0.02),
    Field("dt_min", "time_step_min", 0.001),
    Field("dt_max", "time_step_max", 0.1),
    Field("dt_init_floor", "time_step_floor", 1e-4),
    Field("tie_word_embeddings", "tie_word_embeddings", False),
)
KINDS: dict[str, tuple[type[PreTrainedConfig], tuple[Field, ...]]] = {
    "mamba": (
        MambaConfig,
        (
            *MODEL,
            Field("state_size", "state_size", 16),
            Field("dt_rank", "time_step_rank", "auto"),
            Field("dt_scale", "time_step_scale", 1.0),
            Field("dt_init_scheme", "time_step_init_scheme", "random"),
            Field("residual_in_fp32", "residual_in_fp32", False),
            Field("rescale_prenorm_residual", "rescale_prenorm_residual", False),
        ),
    ),
    "mamba2": (
        Mamba2Config,
        (
            *MODEL,
            Field("state_size", "state_size", 128),
            Field("head_dim", "head_dim", 64),
            Field("n_groups", "n_groups", 1),
            Field("dt_limit", "time_step_limit", (0.0, float("inf"))),
            Field("chunk_size", "chunk_size", 256),
            Field("residual_in_fp32", "residual_in_fp32", True),
            Field("rescale_prenorm_residual", "rescale_prenorm_residual", True),
        ),
    ),
}


def recognises(settings: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of fla's Mamba or Mamba2."""
    return settings.get("model_type") in KINDS and "norm_eps" in settings


def to_library(settings: Mapping[str, Any], where: Path) -> PreTrainedConfig:
    """transformers' configuration of the same model. Raises InputError for an option without a counterpart."""
    refuse_optional_parts(settings, where)
    kind, fields = KINDS[settings["model_type"]]
    return library_config(kind, {field.ours: settings.get(field.theirs, field.default) for field in fields}, where)


def from_library(config: PreTrainedConfig, where: Path) -> dict[str, Any]:
    """fla's config.json for the model of `where`."""
    settings = {field.theirs: field.of(config) for field in KINDS[config.model_type][1]}
    name = "MambaForCausalLM" if config.model_type == "mamba" else "Mamba2ForCausalLM"
    return {"architectures": [name], "model_type": config.model_type, **settings}
