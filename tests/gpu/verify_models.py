"""Verifies on a GPU what fla's and mamba_ssm's own layers do with a state there, and that wrapped models do right.

    python tests/gpu/verify_models.py

Each check runs the library's path as it is, where its fault must still show, and the wrapped model beside it. A
library that is not installed is left out. Exit 1 when anything is otherwise than expected.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")  # read when Triton is imported
sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch import Tensor

from lengthen import check, load, wrap
from lengthen.models.agreement import relative_error
from lengthen.models.tiny_models import build_tiny_model
from lengthen.models.tiny_models_fla import FLA_TINY_MODELS

BOUND = 5e-3  # products may run in tf32 all the same
BF16 = 5e-2
IDS = torch.randint(3, 64, (2, 160), generator=torch.Generator().manual_seed(0))

# Large enough for Triton's products, which want 16 entries a side.
SHAPES: dict[str, dict[str, Any]] = {
    "Mamba": {"state_size": 16},
    "Mamba2": {"head_dim": 64, "state_size": 32, "chunk_size": 64, "n_groups": 1},
    "GLA": {"num_heads": 2},
    "RWKV6": {"num_heads": 2, "proj_low_rank_dim": 32, "gate_low_rank_dim": 32},
    "RWKV7": {
        "head_dim": 64,
        "decay_low_rank_dim": 32,
        "gate_low_rank_dim": 32,
        "a_low_rank_dim": 32,
        "v_low_rank_dim": 32,
    },
    "GatedDeltaNet": {"num_heads": 2, "head_dim": 32},
    "DeltaNet": {"num_heads": 2},
    "KDA": {"num_heads": 2, "head_dim": 32},
    "HGRN": {},
    "HGRN2": {"num_heads": 2, "expand_ratio": 64},
    "RetNet": {"num_heads": 2},
    "LinearAttention": {"num_heads": 2},
}
VALUE_FIRST = {"Mamba2", "GLA", "GatedDeltaNet", "KDA", "HGRN2"}
"""Whose own cache keeps [value, key]; the others [key, value], or no matrix."""


def build(name: str, device: str) -> Any:
    """fla's own model of a class, on the device, in evaluation mode."""
    tiny = next(tiny for tiny in FLA_TINY_MODELS if tiny.name == name)
    options = tiny.options | {"hidden_size": 128, "intermediate_size": 128} | SHAPES[name]
    if name.startswith("Mamba"):
        del options["intermediate_size"]
    if name == "Mamba2":
        options |= {"num_heads": 4}
    return build_tiny_model(replace(tiny, options=options)).to(device)


@contextmanager
def raised(*kinds: type[BaseException]) -> Iterator[None]:
    """Something inside must raise one of these."""
    try:
        yield
    except kinds:
        return
    raise AssertionError(f"nothing raised {' or '.join(kind.__name__ for kind in kinds)}")


def close(found: Tensor, expected: Tensor, what: str, bound: float = BOUND) -> None:
    error = relative_error(found, expected)
    assert error <= bound, f"{what}: {error:.1e} > {bound:.0e}"


def far(found: Tensor, expected: Tensor, what: str) -> None:
    error = relative_error(found, expected)
    assert error > 1e-2, f"{what}: {error:.1e}"


# -- fla --------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def runs_and_lays_out(name: str, device: str) -> None:
    """fla runs where there is a GPU; wrapped, its logits are the same, and its states in lengthen's layout."""
    model, ids = build(name, device), IDS.to(device)
    library = model(ids, use_cache=True)
    output = wrap(model)(ids)
    close(output.logits, library.logits, "logits")
    if name == "RetNet":  # lengthen's states are turned to be seen from the next position, which the gate checks
        return
    ours = [named["recurrent"] for named in output.final_state.tensors.values() if "recurrent" in named]
    for found, layer in zip(ours, library.past_key_values, strict=True):
        state = layer["recurrent_state"]
        close(found, state.mT if name in VALUE_FIRST else state, "state")


def passes_the_gate(name: str, device: str) -> None:
    """Every check of the parity gate, its errors to what a GPU's products allow."""
    for found in check(build(name, device)).checks:
        within = found.value is not None and found.value <= max(BOUND, found.tolerance or 0)
        assert found.passed or within, f"{found.name}: {found.value}"


@torch.no_grad()
def takes_several_tokens(name: str, device: str) -> None:
    """The library raises for several tokens with a cache; wrapped, they go on from a state."""
    model, ids = build(name, device), IDS.to(device)
    cache = model(ids[:, :100], use_cache=True).past_key_values
    with raised(ValueError):
        model(ids[:, 100:], past_key_values=cache, use_cache=True)
    wrap(model)
    state = model(ids[:, :100]).final_state
    close(model(ids[:, 100:], initial_state=state).logits, model(ids).logits[:, 100:], "segments")


def keeps_its_state_in_checkpointing(device: str) -> None:
    """The library's gradient checkpointing sets the cache to None."""
    model, ids = build("GLA", device), IDS.to(device)
    with torch.no_grad():
        cache = model(ids[:, :100], use_cache=True).past_key_values
        carried = model(ids[:, 100:], past_key_values=cache, use_cache=True).logits
    model.train().gradient_checkpointing_enable({"use_reentrant": False})
    cache = model(ids[:, :100], use_cache=True).past_key_values
    far(model(ids[:, 100:], past_key_values=cache, use_cache=True).logits, carried, "the library keeps the cache")
    wrap(model)
    state = model(ids[:, :100]).final_state
    close(model(ids[:, 100:], initial_state=state).logits, carried, "checkpointed")


@torch.no_grad()
def looks_ahead_without_a_trace(device: str) -> None:
    """With use_cache=False the library moves RWKV-7's shifted token on, and not its matrix."""
    model, ids = build("RWKV7", device), IDS.to(device)
    cache = model(ids[:, :100], use_cache=True).past_key_values
    before = [(layer["recurrent_state"].clone(), layer["conv_state"].clone()) for layer in cache]
    model(ids[:, 100:], past_key_values=cache, use_cache=False)
    for (matrix, token), layer in zip(before, cache, strict=True):
        assert torch.equal(layer["recurrent_state"], matrix), "the library's matrix moved on"
        assert not torch.equal(layer["conv_state"], token), "the library's shifted token stayed"
    wrap(model)
    state = model(ids[:, :100]).final_state
    first = model(ids[:, 100:], initial_state=state, use_cache=False).logits
    close(model(ids[:, 100:], initial_state=state).logits, first, "after a look ahead")


@torch.no_grad()
def keeps_packed_documents_apart(device: str) -> None:
    """Where a state is carried, the library's token shift of RWKV-6 reaches over the start of a packed document."""
    model, ids = build("RWKV6", device), IDS[:1].to(device)
    starts = torch.tensor([0, 80, 160], device=device)
    x, shift = model.model.embeddings(ids), model.model.layers[0].ffn
    apart = torch.cat([shift(x[:, :80])[0], shift(x[:, 80:])[0]], 1)
    cache = model(ids[:, :1], use_cache=True).past_key_values
    carried = shift(x, None, cache, starts)[0]
    close(carried[:, 81:], apart[:, 81:], "the rest of the document")
    far(carried[:, 80], apart[:, 80], "the library keeps documents apart")
    reset = torch.zeros_like(ids, dtype=torch.bool)
    reset[:, 80] = True
    wrap(model)
    packed = model(ids, reset=reset, initial_state=model(ids[:, :1]).final_state).logits
    close(packed[:, 80:], model(ids[:, 80:]).logits, "after a reset")


def has_gradients_in_short_texts(device: str) -> None:
    """Up to 64 tokens in evaluation mode the library picks a kernel without a backward."""
    model, ids = build("GatedDeltaNet", device), IDS[:, :40].to(device)
    with raised(NotImplementedError, RuntimeError):
        model(ids, use_cache=False).logits.square().mean().backward()
    wrap(model)
    model(ids).logits.square().mean().backward()
    rates = [p.grad for n, p in model.named_parameters() if n.endswith("A_log")]
    assert all(grad is not None and grad.abs().sum() > 0 for grad in rates), "no gradient"


# -- mamba_ssm --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def carries_what_mamba_ssm_does_not(layer: str, device: str) -> None:
    """Its modules go on from a state for one token alone, and keep it in bfloat16; its checkpoint, loaded, does not."""
    from mamba_ssm.models.config_mamba import MambaConfig
    from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel
    from mamba_ssm.utils.generation import InferenceParams

    options = {"layer": "Mamba2", "headdim": 64, "d_state": 64} if layer == "Mamba2" else {"layer": layer}
    config = MambaConfig(d_model=128, n_layer=2, vocab_size=64, ssm_cfg=options)
    torch.manual_seed(0)
    theirs, ids = MambaLMHeadModel(config, device=device, dtype=torch.bfloat16), IDS.to(device)
    memory = InferenceParams(max_seqlen=160, max_batch_size=2)
    theirs(ids[:, :100], inference_params=memory)
    memory.seqlen_offset += 100
    assert memory.key_value_memory_dict[0][1].dtype == torch.bfloat16, "the module's state is wider than its weights"
    with raised(AssertionError):
        theirs(ids[:, 100:], inference_params=memory)
    expected = theirs(ids).logits

    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        model = load(folder, device=device)
    whole = model(ids)
    close(whole.logits.float(), expected.float(), "logits", BF16)
    state = model(ids[:, :100]).final_state
    close(model(ids[:, 100:], initial_state=state).logits.float(), whole.logits[:, 100:].float(), "segments", BF16)
    kept = {named["recurrent"].dtype for named in state.tensors.values()}
    assert kept == {torch.float32}, f"states in {kept}"


# -- all --------------------------------------------------------------------------------------------------------------


def checks(device: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """(what is checked, the check) for every library that is installed."""
    if find_spec("fla") is not None:
        for name in SHAPES:
            yield f"{name}: the library's logits and states", lambda name=name: runs_and_lays_out(name, device)
            yield f"{name}: the parity gate", lambda name=name: passes_the_gate(name, device)
        for name in ("Mamba", "Mamba2"):
            yield f"{name}: several tokens from a state", lambda name=name: takes_several_tokens(name, device)
        yield "GLA: gradient checkpointing", lambda: keeps_its_state_in_checkpointing(device)
        yield "RWKV7: a look ahead", lambda: looks_ahead_without_a_trace(device)
        yield "RWKV6: packed documents", lambda: keeps_packed_documents_apart(device)
        yield "GatedDeltaNet: gradients of short texts", lambda: has_gradients_in_short_texts(device)
    if find_spec("mamba_ssm") is not None:
        for layer in ("Mamba1", "Mamba2"):
            yield f"mamba_ssm's {layer}", lambda layer=layer: carries_what_mamba_ssm_does_not(layer, device)


def main(device: str = "cuda") -> int:
    if device == "cuda" and not torch.cuda.is_available():
        print("No GPU is visible to PyTorch, so there is nothing to verify.")
        return 1
    print(torch.cuda.get_device_name() if device == "cuda" else device, torch.__version__)
    failed = 0
    for title, run in checks(device):
        try:
            run()
        except Exception as error:  # whatever a library raises is the finding
            failed += 1
            print(f"{title}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
        else:
            print(f"{title}: as expected")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
