"""The checkpoint format of mamba_ssm's MambaLMHeadModel, told in the words of transformers, and back.

A directory holds config.json (the fields of mamba_ssm's MambaConfig, with the mixer's arguments in "ssm_cfg") and
pytorch_model.bin. The mathematics is that of transformers' Mamba and Mamba2 classes where the mixers are Mamba1 or
Mamba2 throughout, norms are RMS norms, and no optional part of the mixer is used: what has no counterpart is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import Mamba2Config, MambaConfig, PreTrainedConfig

from lengthen.errors import InputError
from lengthen.models.settings import OPTIONAL_PARTS, Field, library_config, refuse_optional_parts

# mamba_ssm's names of tensors and transformers'; every other tensor has the same name in both.
NAMES = {"backbone.embedding.weight": "backbone.embeddings.weight"}

# mamba_ssm fixes the epsilon of its norms.
EPSILON = 1e-5

MODEL = (
    Field("d_model", "hidden_size", 2560),
    Field("n_layer", "num_hidden_layers", 64),
    Field("residual_in_fp32", "residual_in_fp32", True),
    Field("tie_embeddings", "tie_word_embeddings", True),
)
MIXERS: dict[str, tuple[type[PreTrainedConfig], tuple[Field, ...]]] = {
    "Mamba1": (
        MambaConfig,
        (
            Field("d_state", "state_size", 16),
            Field("d_conv", "conv_kernel", 4),
            Field("expand", "expand", 2),
            Field("dt_rank", "time_step_rank", "auto"),
            Field("dt_min", "time_step_min", 0.001),
            Field("dt_max", "time_step_max", 0.1),
            Field("dt_init", "time_step_init_scheme", "random"),
            Field("dt_scale", "time_step_scale", 1.0),
            Field("dt_init_floor", "time_step_floor", 1e-4),
            Field("conv_bias", "use_conv_bias", True),
            Field("bias", "use_bias", False),
        ),
    ),
    "Mamba2": (
        Mamba2Config,
        (
            Field("d_state", "state_size", 128),
            Field("d_conv", "conv_kernel", 4),
            Field("expand", "expand", 2),
            Field("headdim", "head_dim", 64),
            Field("ngroups", "n_groups", 1),
            Field("dt_min", "time_step_min", 0.001),
            Field("dt_max", "time_step_max", 0.1),
            Field("dt_init_floor", "time_step_floor", 1e-4),
            Field("dt_limit", "time_step_limit", (0.0, float("inf"))),
            Field("bias", "use_bias", False),
            Field("conv_bias", "use_conv_bias", True),
            Field("chunk_size", "chunk_size", 256),
        ),
    ),
}

# What leaves the trained model as it is: choices of kernels and of the first weights.
INDIFFERENT = {"use_fast_path", "use_mem_eff_path", "conv_init", "A_init_range"}
KNOWN = {field.theirs for field in MODEL} | {
    *("d_intermediate", "vocab_size", "ssm_cfg", "attn_layer_idx", "attn_cfg", "rms_norm", "fused_add_norm"),
    "pad_vocab_size_multiple",
}


def recognises(settings: Mapping[str, Any]) -> bool:
    """Whether a config.json is one of mamba_ssm's."""
    return "model_type" not in settings and {"d_model", "n_layer"} <= set(settings)


def to_library(settings: Mapping[str, Any], where: Path) -> PreTrainedConfig:
    """transformers' configuration of the same model, the vocabulary padded as the weights are.

    Raises InputError for attention or MLP layers, another mixer, LayerNorm, or an option without a counterpart.
    """
    mixer_settings = dict(settings.get("ssm_cfg") or {})
    layer = mixer_settings.pop("layer", "Mamba1")
    if settings.get("attn_layer_idx"):
        raise InputError(
            f"{where} is a hybrid with attention in layers {settings['attn_layer_idx']}, which transformers' Mamba "
            "classes do not have; only models of Mamba1 or Mamba2 layers throughout can be read."
        )
    if settings.get("d_intermediate", 0):
        raise InputError(
            f"{where} has an MLP of width {settings['d_intermediate']} in each block, which transformers' Mamba "
            "classes do not have; only models without (d_intermediate 0) can be read."
        )
    if layer not in MIXERS:
        raise InputError(f"{where} has layers of type {layer!r}; only Mamba1 and Mamba2 can be read.")
    if not settings.get("rms_norm", True):
        raise InputError(f"{where} has LayerNorm (rms_norm false); only models with RMS norms can be read.")
    config_class, fields = MIXERS[layer]
    _refuse_options(settings, mixer_settings, layer, where)

    vocabulary, multiple = settings.get("vocab_size", 50277), settings.get("pad_vocab_size_multiple", 8)
    if not isinstance(vocabulary, int) or not isinstance(multiple, int) or multiple < 1:
        raise InputError(
            f"{where} pads a vocabulary of {vocabulary!r} to a multiple of {multiple!r}; both must be whole numbers."
        )
    values = {field.ours: settings.get(field.theirs, field.default) for field in MODEL}
    values |= {field.ours: mixer_settings.get(field.theirs, field.default) for field in fields}
    values |= {"vocab_size": -(-vocabulary // multiple) * multiple, "layer_norm_epsilon": EPSILON}
    # mamba_ssm's configuration knows no special tokens.
    values |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return library_config(config_class, values, where)


def from_library(config: PreTrainedConfig, where: Path) -> dict[str, Any]:
    """mamba_ssm's config.json for the model of `where`.

    Raises InputError for an activation or an epsilon that mamba_ssm does not have.
    """
    layer, fields = next((layer, fields) for layer, (kind, fields) in MIXERS.items() if isinstance(config, kind))
    if config.hidden_act not in ("silu", "swish"):
        raise InputError(f"{where} has the activation {config.hidden_act}; mamba_ssm has silu only.")
    if config.layer_norm_epsilon != EPSILON:
        raise InputError(f"{where} has norms with epsilon {config.layer_norm_epsilon}; mamba_ssm has {EPSILON} only.")
    mixer = {field.theirs: field.of(config) for field in fields if field.of(config) != field.default}
    return {
        **{field.theirs: field.of(config) for field in MODEL},
        "d_intermediate": 0,
        "vocab_size": config.vocab_size,
        "ssm_cfg": {"layer": layer, **mixer},
        "attn_layer_idx": [],
        "attn_cfg": {},
        "rms_norm": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": 1,
    }


def _refuse_options(settings: Mapping[str, Any], mixer: Mapping[str, Any], layer: str, where: Path) -> None:
    """What changes the mathematics and has no counterpart, or is not known at all."""
    known = {field.theirs for field in MIXERS[layer][1]} | INDIFFERENT
    if layer == "Mamba2":
        known |= {*OPTIONAL_PARTS, "d_ssm"}
        refuse_optional_parts(mixer, where)
        inner = mixer.get("expand", 2) * settings["d_model"]
        if mixer.get("d_ssm") not in (None, inner):
            raise InputError(
                f"{where} gives {mixer['d_ssm']} of {inner} channels to the recurrence (d_ssm), the rest to an MLP, "
                "which transformers' Mamba2 does not have; only models with all of them can be read."
            )
    unknown = sorted((set(settings) - KNOWN) | {f"ssm_cfg.{name}" for name in set(mixer) - known})
    if unknown:
        raise InputError(
            f"{where} has the option {unknown[0]}, which mamba_ssm's {layer} language model does not have."
        )
