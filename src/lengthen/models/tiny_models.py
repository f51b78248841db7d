"""Tiny random models of every recurrent and hybrid class in the installed transformers, with long memories.

A stock initialisation forgets within a few tokens, so that a lost state would hardly show: the decays are redrawn
to keep a state for tens of tokens, and the projections to let it reach the logits.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from lengthen.errors import InputError

VOCABULARY = 64

_COMMON = {"vocab_size": VOCABULARY, "hidden_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2}
_MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2}
_MAMBA2_MIXER = {"mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_d_head": 16, "mamba_chunk_size": 8}
_DELTA = {
    "head_dim": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_LATENT_ATTENTION = {
    "num_attention_heads": 4,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
}
_HYBRID = ["linear_attention", "full_attention", "linear_attention"]


@dataclass(frozen=True)
class TinyModel:
    """How to build one class small: its name without ForCausalLM, its family, its configuration.

    library: the package that has the class and its configuration.
    """

    name: str
    family: str
    config: str
    options: dict[str, Any] = field(default_factory=dict)
    variant: str = ""
    library: str = "transformers"

    @property
    def title(self) -> str:
        """The class's name, and in brackets what sets a second shape of it apart."""
        return f"{self.name} ({self.variant})" if self.variant else self.name

    @property
    def installed(self) -> bool:
        """Whether the installed library has the class."""
        try:
            library = importlib.import_module(self.library)
        except ImportError:
            return False
        return hasattr(library, f"{self.name}ForCausalLM") and hasattr(library, self.config)


def _qwen(**options: Any) -> dict[str, Any]:
    return _DELTA | _ATTENTION | {"num_hidden_layers": 3, "layer_types": _HYBRID, "intermediate_size": 64} | options


_BAMBA = _ATTENTION | _MAMBA2_MIXER | {"num_hidden_layers": 3, "intermediate_size": 64}
_MINIMAX = _ATTENTION | {
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "linear_attention", "linear_attention"],
    "intermediate_size": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "block_size": 8,
}
_QWEN_EXPERTS = dict(moe_intermediate_size=16, shared_expert_intermediate_size=16, **_MIXTURE)

TINY_MODELS: tuple[TinyModel, ...] = (
    TinyModel("Mamba", "Mamba-1", "MambaConfig", {"num_hidden_layers": 2, "state_size": 8}),
    TinyModel("FalconMamba", "Mamba-1", "FalconMambaConfig", {"num_hidden_layers": 2, "state_size": 8}),
    TinyModel(
        "Jamba",
        "Mamba-1",
        "JambaConfig",
        _ATTENTION
        | _MIXTURE
        | {
            "num_hidden_layers": 3,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "mamba_d_state": 8,
            "intermediate_size": 32,
        },
    ),
    TinyModel(
        "Zamba",
        "Mamba-1",
        "ZambaConfig",
        {
            "num_hidden_layers": 4,
            "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "mamba_d_state": 8,
            "intermediate_size": 64,
        },
    ),
    TinyModel(
        "Mamba2",
        "Mamba-2",
        "Mamba2Config",
        {"num_hidden_layers": 2, "num_heads": 4, "head_dim": 16, "n_groups": 2, "state_size": 8, "chunk_size": 8},
    ),
    TinyModel("Bamba", "Mamba-2", "BambaConfig", _BAMBA | {"attn_layer_indices": [1]}),
    TinyModel("Bamba", "Mamba-2", "BambaConfig", _BAMBA, variant="no attention layer"),
    TinyModel(
        "Zamba2",
        "Mamba-2",
        "Zamba2Config",
        {
            "num_hidden_layers": 3,
            "layers_block_type": ["linear_attention", "hybrid", "linear_attention"],
            "num_attention_heads": 4,
            "mamba_d_state": 8,
            "mamba_ngroups": 2,
            "n_mamba_heads": 4,
            "chunk_size": 8,
            "use_mem_rope": True,
            "adapter_rank": 4,
        },
    ),
    TinyModel(
        "FalconH1",
        "Mamba-2",
        "FalconH1Config",
        _ATTENTION | _MAMBA2_MIXER | {"num_hidden_layers": 2, "intermediate_size": 64, "mamba_d_ssm": 64},
    ),
    TinyModel(
        "GraniteMoeHybrid",
        "Mamba-2",
        "GraniteMoeHybridConfig",
        _ATTENTION
        | _MAMBA2_MIXER
        | {
            "num_hidden_layers": 3,
            "layer_types": _HYBRID,
            "position_embedding_type": "rope",
            "intermediate_size": 16,
            "shared_intermediate_size": 32,
            "num_local_experts": 4,
            "attention_multiplier": 0.35,
        },
    ),
    TinyModel(
        "NemotronH",
        "Mamba-2",
        "NemotronHConfig",
        _ATTENTION
        | {
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
            "head_dim": 8,
            "intermediate_size": 32,
            "ssm_state_size": 8,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "chunk_size": 8,
        },
    ),
    TinyModel("MiniMax", "lightning attention", "MiniMaxConfig", _MINIMAX),
    TinyModel(
        "MiniMax",
        "lightning attention",
        "MiniMaxConfig",
        _MINIMAX | {"layer_types": _HYBRID},
        variant="lightning layer first",
    ),
    TinyModel(
        "BailingHybrid",
        "delta rule",
        "BailingHybridConfig",
        _LATENT_ATTENTION
        | {
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "layer_types": _HYBRID,
            "n_group": 2,
            "topk_group": 1,
            "head_dim": 8,
            "num_mtp_layers": 0,
            "kda_lower_bound": -0.3,
        },
    ),
    TinyModel("Rwkv", "RWKV-4", "RwkvConfig", {"num_hidden_layers": 3, "rescale_every": 2}),
    TinyModel("Qwen3Next", "delta rule", "Qwen3NextConfig", _qwen(**_QWEN_EXPERTS)),
    TinyModel(
        "Qwen3Next",
        "delta rule",
        "Qwen3NextConfig",
        _qwen(**_QWEN_EXPERTS, layer_types=["linear_attention"] * 3),
        variant="no attention layer",
    ),
    TinyModel("Qwen3_5", "delta rule", "Qwen3_5TextConfig", _qwen()),
    TinyModel("Qwen3_5Moe", "delta rule", "Qwen3_5MoeTextConfig", _qwen(**_QWEN_EXPERTS)),
    TinyModel(
        "Qwen4Exp",
        "delta rule",
        "Qwen4ExpTextConfig",
        _qwen(
            **_QWEN_EXPERTS,
            layer_types=["linear_attention", "indexed_attention", "linear_attention"],
            hc_count=2,
            hc_lowrank=8,
            indexer_n_heads=2,
            indexer_kv_heads=1,
            indexer_head_dim=8,
            indexer_budget=64,
            indexer_compress_ratio=1,
        ),
    ),
    TinyModel(
        "OlmoHybrid", "delta rule", "OlmoHybridConfig", _qwen(linear_num_value_heads=2, max_position_embeddings=256)
    ),
    TinyModel(
        "KimiLinear",
        "delta rule",
        "KimiLinearConfig",
        _LATENT_ATTENTION
        | {
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "layer_types": _HYBRID,
            "linear_head_dim": 8,
            "linear_num_heads": 4,
        },
    ),
    TinyModel(
        "LaraMini",
        "delta rule",
        "LaraMiniConfig",
        _qwen(**_QWEN_EXPERTS, layer_types=["linear_attention", "sliding_attention", "full_attention"]),
    ),
    TinyModel(
        "RecurrentGemma",
        "RG-LRU",
        "RecurrentGemmaConfig",
        {
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "block_types": ["recurrent", "attention"],
        },
    ),
    TinyModel("xLSTM", "xLSTM", "xLSTMConfig", {"num_hidden_layers": 2, "hidden_size": 128, "num_heads": 4}),
    TinyModel(
        "xLSTM",
        "xLSTM",
        "xLSTMConfig",
        {"num_hidden_layers": 2, "hidden_size": 64, "num_heads": 4},
        variant="hidden size 64",
    ),
    TinyModel(
        "Lfm2",
        "short convolution",
        "Lfm2Config",
        _ATTENTION
        | {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "intermediate_size": 64},
    ),
    TinyModel(
        "Lfm2Moe",
        "short convolution",
        "Lfm2MoeConfig",
        _ATTENTION
        | _MIXTURE
        | {
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "num_dense_layers": 1,
            "intermediate_size": 64,
            "moe_intermediate_size": 16,
        },
    ),
    TinyModel(
        "Lfm3",
        "short convolution",
        "Lfm3Config",
        _ATTENTION
        | {
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "head_dim": 8,
            "intermediate_size": 64,
        },
    ),
)


def build_tiny_model(tiny: TinyModel, seed: int = 0) -> PreTrainedModel:
    """A float32 model on the CPU in eval mode, the same for the same seed.

    Raises:
        InputError: the library is not installed or does not have the class.
    """
    if not tiny.installed:
        raise InputError(f"{tiny.library} has no {tiny.name}ForCausalLM here; install a release that has it.")
    library = importlib.import_module(tiny.library)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = getattr(library, tiny.config)(**(_COMMON | tiny.options))
        model = getattr(library, f"{tiny.name}ForCausalLM")(config).float()
        _redraw(model)
    return model.eval()


@torch.no_grad()
def _redraw(model: PreTrainedModel) -> None:
    """Redraws decays for memories of about twenty tokens, and matrices at unit gain."""
    for name, parameter in model.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        if leaf == "A_log":
            parameter.uniform_(0.25, 1.0).log_()
        elif "dt_" in name and "bias" in leaf:
            parameter.uniform_(-3.5, -2.5)  # softplus of it: steps of 0.03 to 0.08
        elif leaf == "time_decay" or name.endswith("w_proj.linear.lora.2.bias"):
            parameter.uniform_(-4.0, -2.0)
        elif leaf == "mu":
            parameter.uniform_(0.25, 0.75)  # the stock 0 shifts no token
        elif name.endswith("igate_preact.bias"):
            parameter.uniform_(-1.0, 1.0)  # the stock -10 shuts the input out
        elif leaf == "D":
            parameter.fill_(0.2)
        elif "embed" in name:
            parameter.normal_()
        elif parameter.dim() >= 2 and not leaf.startswith("time_mix"):
            inputs = parameter[0].numel() if parameter.shape[1] == 1 else parameter.shape[-1]
            parameter.normal_(std=1 / math.sqrt(inputs))
