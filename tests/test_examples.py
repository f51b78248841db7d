"""The examples run as their first lines say."""

import re
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


def test_audio_regression_fails_and_is_repaired():
    """On three seeds: before 3 to 6 times the reset baseline, the control no better, state passing below it."""
    command = [sys.executable, EXAMPLES / "audio_regression.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "state carried: True" in done.stdout and "streamed to position 2048" in done.stdout
    line = re.compile(r"^(before|zero|state-passing): far ([\d.]+), reset ([\d.]+)\. (Fails|No failure)", re.MULTILINE)
    found = {name: (float(far), float(reset), verdict) for name, far, reset, verdict in line.findall(done.stdout)}
    reset = found["before"][1]
    assert found["before"][2] == found["zero"][2] == "Fails" and found["state-passing"][2] == "No failure"
    assert min(found["before"][0], found["zero"][0]) > 2 * reset and found["state-passing"][0] < 0.9 * reset
