"""The examples run as their first lines say."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lengthen.data import bundled_plays
from tests.conftest import tiny_mamba2

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def model_and_text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("example")
    tiny_mamba2().save_pretrained(folder / "model")
    (folder / "text.txt").write_text(bundled_plays()[0][0].text[:50_000])
    return folder / "model", folder / "text.txt"


def test_plain_loop(model_and_text, tmp_path):
    model, text = model_and_text
    command = [sys.executable, EXAMPLES / "plain_loop.py", model, text, tmp_path / "out", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "after 5 steps" in done.stdout
    from transformers import Mamba2ForCausalLM

    before, after = (Mamba2ForCausalLM.from_pretrained(p) for p in (model, tmp_path / "out"))
    assert any(not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters()))
