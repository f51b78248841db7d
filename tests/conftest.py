"""What tests share: one thread, tiny Mamba-2 models of several shapes, the bundled plays as a corpus."""

from __future__ import annotations

import importlib
import os
import types

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from transformers.integrations import hub_kernels

torch.set_num_threads(1)


def _without_fla(name, *rest):
    if name.split(".")[0] == "fla":
        raise ImportError("there is no GPU")
    return importlib.import_module(name, *rest)


# Where fla is installed transformers calls its kernels, also where no GPU can run them: keep it to its own PyTorch.
if not torch.cuda.is_available():
    hub_kernels.importlib = types.SimpleNamespace(import_module=_without_fla)

SHAPES = {
    "one group": {},
    "groups": {"n_groups": 2},
    "dt limits, no convolution bias": {"time_step_limit": (0.01, 0.05), "use_conv_bias": False},
    "tied, biases, gelu": {"tie_word_embeddings": True, "use_bias": True, "hidden_act": "gelu", "n_groups": 4},
}


def tiny_mamba2(seed: int = 0, **options):
    """A transformers Mamba2ForCausalLM of 20 thousand parameters with random weights; vocabulary 256."""
    from transformers import Mamba2Config, Mamba2ForCausalLM

    settings = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "state_size": 16,
        "head_dim": 16,
        "num_heads": 4,
        "n_groups": 1,
        "vocab_size": 256,
        "chunk_size": 16,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    return Mamba2ForCausalLM(Mamba2Config(**{**settings, **options})).eval()


def library_cache(output):
    """The library's cache in its output, under whatever name its release has for it."""
    from lengthen.models.library_cache import CACHE_KEYWORDS

    return next(output[name] for name in CACHE_KEYWORDS if output.get(name) is not None)


def checkpoint_activations(model):
    """Turns the library's activation checkpointing on, under whatever name its release has for it."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


@pytest.fixture(params=list(SHAPES), ids=list(SHAPES))
def shaped_mamba2(request):
    return tiny_mamba2(**SHAPES[request.param])


@pytest.fixture(scope="session")
def plays():
    """(training corpus, held-out corpus) of the bundled plays, as bytes."""
    from lengthen.data import bundled_plays, load_corpus

    training, held_out = bundled_plays()
    return load_corpus(training), load_corpus(held_out)


def plain_transformers(folder):
    """The model in a folder as transformers alone loads it: by its class, since fla, once imported, takes over AutoModel."""
    import json

    import transformers

    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    return getattr(transformers, name).from_pretrained(folder)
