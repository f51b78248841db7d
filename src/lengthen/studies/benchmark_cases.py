"""The pairs that `benchmark` times: one of our recurrences or layers, and a peer that computes the same.

Dims: T positions, H heads, K key dim, V value dim, D channels, N state per channel; batch 1.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.errors import InputError
from lengthen.kernels import (
    gated_delta_rule,
    gated_linear_attention,
    linear_cross_entropy,
    selective_scan,
    short_conv,
    ssd,
)
from lengthen.models import wrap

Step = Callable[[], object]
FORWARD, BOTH = "forward", "forward+backward"
PRODUCTS = ", bf16 products"


@dataclass(frozen=True)
class Case:
    """One thing to time against one peer. `build` gives our step and the peer's on the same weights and inputs."""

    op: str
    shape: str
    length: int
    mode: str
    peer: str
    build: Callable[[Case], tuple[Step, Step]]
    matrix_flops: float = 0.0
    with_memory: bool = False

    @property
    def name(self) -> str:
        return f"{self.op}-{self.length}-{self.mode}-{self.peer}".replace(" ", "-").replace(",", "")


def cases() -> list[Case]:
    """Every pair, in the order of the table; a peer that is not installed is refused when its pair is built."""
    scan = Case("selective_scan", "D 1536, N 16", 512, BOTH, "transformers", _selective_scan)
    head = Case("ssd", "24 x 64, N 128", 2048, BOTH, "transformers", _ssd)
    gla = Case("gated_linear_attention", "12 x 64 x 64", 2048, BOTH, "fla naive", _gated_linear_attention)
    first = Case("mamba-1 layer", "d 768", 2048, BOTH, "transformers with mambapy", _mamba1_layer, _mamba1_flops(2048))
    second = Case("mamba-2 layer", "d 768", 2048, BOTH, "transformers", _mamba2_layer)
    return [
        scan,
        replace(scan, length=2048, peer="transformers with mambapy", with_memory=True),
        head,
        replace(head, length=8192, with_memory=True),
        replace(gla, mode=FORWARD),
        gla,
        Case("gated_delta_rule", "12 x 64 x 64", 2048, BOTH, "fla naive chunk", _gated_delta_rule),
        first,
        replace(first, mode=BOTH + PRODUCTS),
        second,
        replace(second, mode=BOTH + PRODUCTS),
        Case("mamba-2 model", "d 256, 4 layers", 8192, BOTH, "transformers", _tiny_mamba2, with_memory=True),
    ]


def measure_memory(name: str, ours: bool) -> float:
    """Peak MB that one step adds to this process, which should do nothing else."""
    torch.set_num_threads(1)
    case = next(case for case in cases() if case.name == name)
    step = case.build(case)[0 if ours else 1]
    process = Path("/proc/self")  # getrusage's peak would start from the parent's
    if not process.exists():
        raise InputError("Peak memory is measured on Linux only; pass memory=False.")
    (process / "clear_refs").write_text("5")  # the peak starts anew
    before = _status(process, "VmRSS")
    step()
    return _status(process, "VmHWM") - before


def _status(process: Path, name: str) -> float:
    lines = (process / "status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def _steps(
    case: Case, ours: Callable[..., Tensor], peer: Callable[..., Tensor], inputs: list[Tensor]
) -> tuple[Step, Step]:
    """Steps that run a function of the inputs, and its gradients where the mode asks for them."""

    def step(function: Callable[..., Tensor]) -> Step:
        def forward() -> None:
            with torch.no_grad():
                function(*inputs)

        leaves = [tensor.clone().requires_grad_() for tensor in inputs]

        def both() -> None:
            output = function(*leaves)
            torch.autograd.grad(output, leaves, torch.ones_like(output))

        return forward if case.mode == FORWARD else both

    return step(ours), step(peer)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape)


def _selective_scan(case: Case) -> tuple[Step, Step]:
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    T, D, N = case.length, 1536, 16
    inputs = [
        _random(1, T, D),
        _random(1, T, D) - 3,
        -torch.arange(1.0, N + 1).repeat(D, 1),
        _random(1, T, N),
        _random(1, T, N),
        torch.ones(D),
        _random(1, T, D),
        torch.zeros(D),
    ]

    def ours(
        x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, skip: Tensor, gate: Tensor, bias: Tensor
    ) -> Tensor:
        return selective_scan(x, dt, A, B, C, skip=skip, gate=gate, dt_bias=bias, dt_softplus=True)[0]

    def peer(
        x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, skip: Tensor, gate: Tensor, bias: Tensor
    ) -> Tensor:
        x, dt, B, C, gate = (tensor.mT for tensor in (x, dt, B, C, gate))
        return mamba_selective_scan(
            x, dt, A, B, C, D=skip, z=gate, delta_bias=bias, delta_softplus=True, use_mambapy=mambapy
        )

    mambapy = "mambapy" in case.peer
    if mambapy:
        _require("mambapy")
    return _steps(case, ours, peer, inputs)


def _ssd(case: Case) -> tuple[Step, Step]:
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    T, H, K, V = case.length, 24, 128, 64
    dt = 0.1 * torch.rand(1, T, H) + 1e-3
    inputs = [
        _random(1, T, H, V),
        dt,
        -torch.arange(1.0, H + 1),
        _random(1, T, 1, K),
        _random(1, T, 1, K),
        torch.ones(H),
    ]

    def ours(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, skip: Tensor) -> Tensor:
        return ssd(C, B, x, dt * A, dt, skip=skip)[0]

    def peer(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, skip: Tensor) -> Tensor:
        return mamba2_chunk_scan(x, dt, A, B, C, chunk_size=256, D=skip)

    return _steps(case, ours, peer, inputs)


def _gated_linear_attention(case: Case) -> tuple[Step, Step]:
    peer_function = _fla_naive("gla").naive_recurrent_gla
    T, H, K, V = case.length, 12, 64, 64
    inputs = [_random(1, T, H, K), _random(1, T, H, K), _random(1, T, H, V), F.logsigmoid(_random(1, T, H, K)) / 16]
    scale = 1 / math.sqrt(K)
    return _steps(
        case,
        lambda q, k, v, g: gated_linear_attention(q * scale, k, v, g)[0],
        lambda q, k, v, g: peer_function(q, k, v, g)[0],
        inputs,
    )


def _gated_delta_rule(case: Case) -> tuple[Step, Step]:
    peer_function = _fla_naive("gated_delta_rule").naive_chunk_gated_delta_rule
    T, H, K, V = case.length, 12, 64, 64
    inputs = [
        _random(1, T, H, K),
        F.normalize(_random(1, T, H, K), dim=-1),
        _random(1, T, H, V),
        F.logsigmoid(_random(1, T, H)) / 16,
        torch.rand(1, T, H),
    ]
    scale = 1 / math.sqrt(K)
    return _steps(
        case,
        lambda q, k, v, g, beta: gated_delta_rule(q * scale, k, v, g, beta)[0],
        lambda q, k, v, g, beta: peer_function(q, k, v, g, beta)[0],
        inputs,
    )


def _model_steps(case: Case, loss: Callable[[Any, Tensor], Tensor], ours: Any, peer: Any) -> tuple[Step, Step]:
    tokens = torch.randint(0, 256, (1, case.length))
    products = case.mode.endswith(PRODUCTS)

    def ours_step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=products):
            value = loss(ours, tokens)
        value.backward()
        ours.zero_grad()

    def peer_step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=products):
            value = peer(tokens, labels=tokens, use_cache=False).loss
        value.backward()
        peer.zero_grad()

    return ours_step, peer_step


def _mamba1_flops(positions: int) -> float:
    """Of the matrix products of one layer and its head, forward and backward."""
    return 3 * 2.0 * positions * (768 * 3072 + 1536 * 80 + 48 * 1536 + 1536 * 768 + 768 * 256)


def _mamba1_layer(case: Case) -> tuple[Step, Step]:
    from transformers import MambaConfig, MambaForCausalLM

    _require("mambapy")
    options: dict[str, Any] = {
        "hidden_size": 768,
        "num_hidden_layers": 1,
        "vocab_size": 256,
        "tie_word_embeddings": False,
    }
    model = MambaForCausalLM(MambaConfig(use_mambapy=True, **options)).train()

    def loss(model: Any, tokens: Tensor) -> Tensor:
        backbone, mixer = model.backbone, model.backbone.layers[0].mixer
        embedded = backbone.embeddings(tokens)
        x, gate = mixer.in_proj(backbone.layers[0].norm(embedded)).chunk(2, -1)
        x, _ = short_conv(x, mixer.conv1d.weight.squeeze(1), mixer.conv1d.bias, activation="silu")
        dt, B, C = mixer.x_proj(x).split([mixer.time_step_rank, mixer.ssm_state_size, mixer.ssm_state_size], -1)
        y, _ = selective_scan(
            x,
            F.linear(dt, mixer.dt_proj.weight),
            -torch.exp(mixer.A_log.float()),
            B,
            C,
            skip=mixer.D,
            gate=gate,
            dt_bias=mixer.dt_proj.bias,
            dt_softplus=True,
        )
        hidden = backbone.norm_f(embedded + mixer.out_proj(y))
        weight = model.lm_head.weight.to(hidden.dtype)
        return linear_cross_entropy(hidden[0, :-1], weight, tokens[0, 1:]) / (tokens.shape[1] - 1)

    return _model_steps(case, loss, model, model)


def _mamba2(case: Case, **options: Any) -> tuple[Step, Step]:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": 256,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 1,
        "tie_word_embeddings": False,
    }
    peer = Mamba2ForCausalLM(Mamba2Config(**settings, **options)).train()
    ours = Mamba2ForCausalLM(peer.config).train()
    ours.load_state_dict(peer.state_dict())
    wrap(ours)

    def loss(model: Any, tokens: Tensor) -> Tensor:
        value: Tensor = model(tokens, labels=tokens).loss
        return value

    return _model_steps(case, loss, ours, peer)


def _mamba2_layer(case: Case) -> tuple[Step, Step]:
    return _mamba2(case, hidden_size=768, num_heads=24, num_hidden_layers=1)


def _tiny_mamba2(case: Case) -> tuple[Step, Step]:
    return _mamba2(case, hidden_size=256, num_heads=8, num_hidden_layers=4)


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise InputError(f"{package} is not installed; pip install it, or leave its comparisons out.")


def _fla_naive(operator: str) -> ModuleType:
    """fla's pure PyTorch form of an operator, from its file: importing the package would ask for triton and a GPU."""
    _require("fla")
    _require("einops")
    spec = importlib.util.find_spec("fla")
    assert spec is not None
    for place in spec.submodule_search_locations or []:
        path = Path(place, "ops", operator, "naive.py")
        if path.exists():
            naive = importlib.util.spec_from_file_location(f"lengthen_fla_naive_{operator}", path)
            assert naive is not None and naive.loader is not None
            module = importlib.util.module_from_spec(naive)
            sys.modules[naive.name] = module
            naive.loader.exec_module(module)
            return module
    raise InputError(f"The installed fla has no pure PyTorch form of {operator}; install flash-linear-attention 0.6.")
