"""The examples run as their first lines say, and what they save is the library's own model, trained."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lengthen.data import bundled_plays
from tests.conftest import plain_transformers, tiny_mamba2

EXAMPLES = Path(__file__).parents[1] / "examples"
LAUNCH = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]


@pytest.fixture(scope="module")
def model_and_text(tmp_path_factory):
    """A model of the 256 bytes with a tokenizer of as many characters, and a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("example")
    tiny_mamba2().save_pretrained(folder / "model")
    characters = Tokenizer(models.WordLevel({chr(i): i for i in range(256)}, unk_token="?"))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters, eos_token="\x00", pad_token="\x01")
    tokenizer.save_pretrained(folder / "model")
    (folder / "text.txt").write_text(bundled_plays()[0][0].text[:50_000])
    return folder / "model", folder / "text.txt"


@pytest.mark.parametrize(
    "name, needs, launch",
    [
        ("plain_loop", "torch", []),
        ("transformers_trainer", "transformers", []),
        ("accelerate_loop", "accelerate", LAUNCH),
        ("trl_sft", "trl", []),
    ],
)
def test_example(model_and_text, tmp_path, name, needs, launch):
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    model, text = model_and_text
    command = [sys.executable, *launch, EXAMPLES / f"{name}.py", model, text, tmp_path / "out", "5"]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=offline)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("after 5 steps") == 1
    assert ("of 2 processes" in done.stdout) == (launch != [])
    before, after = (plain_transformers(p) for p in (model, tmp_path / "out"))
    assert any(not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters()))
