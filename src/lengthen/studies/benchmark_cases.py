"""The pairs that `benchmark` times, in the order of its table, and the memory a step of one takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from lengthen.errors import InputError
from lengthen.studies.benchmark_layers import mamba1_flops, mamba1_layer, mamba2_layer, rwkv7_layer, tiny_mamba2
from lengthen.studies.benchmark_pairs import BOTH, FORWARD, PRODUCTS, Case
from lengthen.studies.benchmark_recurrences import (
    gated_delta_rule_pair,
    gated_linear_attention_pair,
    selective_scan_pair,
    ssd_pair,
)


def cases() -> list[Case]:
    """Every pair, in the order of the table; a peer that is not installed is refused when its pair is built."""
    scan = Case("selective_scan", "D 1536, N 16", 512, BOTH, "transformers", selective_scan_pair)
    head = Case("ssd", "24 x 64, N 128", 2048, BOTH, "transformers", ssd_pair)
    gla = Case("gated_linear_attention", "12 x 64 x 64", 2048, BOTH, "fla naive", gated_linear_attention_pair)
    delta = Case("gated_delta_rule", "12 x 64 x 64", 2048, BOTH, "fla naive chunk", gated_delta_rule_pair)
    first = Case("mamba-1 layer", "d 768", 2048, BOTH, "transformers with mambapy", mamba1_layer, mamba1_flops(2048))
    second = Case("mamba-2 layer", "d 768", 2048, BOTH, "transformers", mamba2_layer)
    return [
        scan,
        replace(scan, length=2048, peer="transformers with mambapy", with_memory=True),
        replace(scan, length=2048, peer="mambapy"),
        head,
        replace(head, length=8192, with_memory=True),
        replace(gla, mode=FORWARD),
        gla,
        delta,
        replace(delta, shape="12 x 64 x 64, decay per channel"),
        first,
        replace(first, mode=BOTH + PRODUCTS),
        second,
        replace(second, mode=BOTH + PRODUCTS),
        Case("rwkv-7 layer", "d 768", 2048, FORWARD, "rwkv", rwkv7_layer),
        Case("mamba-2 model", "d 256, 4 layers", 8192, BOTH, "transformers", tiny_mamba2, with_memory=True),
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
