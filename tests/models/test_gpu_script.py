"""tests/gpu/verify_models.py on a CPU, with fla's layers in plain loops: its checks find what they say."""

import importlib.util
from pathlib import Path

import pytest
import torch

from lengthen.models.tiny_models_fla import FLA_TINY_MODELS
from tests.models.fla_reference import fla, fla_runs_on_cpu  # noqa: F401

SCRIPT = Path(__file__).parents[1] / "gpu" / "verify_models.py"
specification = importlib.util.spec_from_file_location("verify_models", SCRIPT)
verify_models = importlib.util.module_from_spec(specification)
specification.loader.exec_module(verify_models)


def test_every_class_of_fla_s_is_verified():
    assert set(verify_models.SHAPES) == {tiny.name for tiny in FLA_TINY_MODELS}


@pytest.mark.usefixtures("fla_runs_on_cpu")
def test_all_checks_but_of_kernels_find_what_they_say():
    """The parity gate runs in every family's own test; a kernel without a backward is a GPU's alone."""
    ran = 0
    for title, run in verify_models.checks("cpu"):
        if not title.endswith(("gate", "gradients of short texts")):
            run()
            ran += 1
    assert ran >= len(FLA_TINY_MODELS) + 5


@pytest.mark.usefixtures("fla")
@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is said without a GPU")
def test_what_goes_wrong_is_told_by_name(capsys, monkeypatch):
    assert verify_models.main() == 1
    assert "nothing to verify" in capsys.readouterr().out
    every = [(title, run) for title, run in verify_models.checks("cpu") if title.startswith("HGRN:")]
    monkeypatch.setattr(verify_models, "checks", lambda device: every)
    assert verify_models.main("cpu") == 1
    _, library, gate = capsys.readouterr().out.splitlines()
    assert library.startswith("HGRN: the library's logits and states: RuntimeError: 0 active drivers")
    assert gate == "HGRN: the parity gate: as expected"
