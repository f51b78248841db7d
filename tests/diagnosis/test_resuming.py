"""A diagnosis that was interrupted anywhere goes on to the identical result; another one is refused."""

import json

import pytest
import torch

from lengthen import diagnose
from lengthen.cli import main
from lengthen.cli.run_folders import DIAGNOSIS_CHECKPOINT
from lengthen.diagnosis import checkpoint
from lengthen.errors import InputError
from lengthen.models import wrap
from lengthen.models.tiny_models import TINY_MODELS, build_tiny_model
from lengthen.streaming import generate
from lengthen.training import Mamba2Recipe
from tests.diagnosis.test_checkpoint import Stopped

T, LENGTH = 16, 1024


@pytest.fixture(scope="module")
def model():
    return wrap(build_tiny_model(next(tiny for tiny in TINY_MODELS if tiny.title == "Mamba2")))


@pytest.fixture(scope="module")
def tokens(model):
    """Windows that the model wrote from the zero state, so that it does worse with the state carried: it fails."""
    first = torch.randint(64, (16 * LENGTH // T, 1), generator=torch.Generator().manual_seed(0))
    written, _ = generate(model, first, T - 1)
    windows = torch.cat([first, written], 1).view(16, LENGTH)
    return torch.cat([windows, windows[:, :1]], 1).numpy()


class Recorded(list):
    """What was told to be done, until an interruption."""

    def __init__(self, stop_after=None):
        self.stop_after = stop_after

    def __call__(self, done, todo):
        self.append(done)
        if len(self) == self.stop_after:
            raise Stopped


def run(model, tokens, folder=None, **options):
    return diagnose(model, tokens, train_context=T, segment=48, checkpoint=folder, **options)


def test_an_interrupted_diagnosis_goes_on_to_the_identical_result(model, tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    whole = run(model, tokens, progress=(told := Recorded()))
    assert whole.remembrance and whole.drift and whole.patching
    for count in (2, *range(24, len(told), 21)):  # after two calls it stands between whole segments
        folder = tmp_path / str(count)
        with pytest.raises(Stopped):
            run(model, tokens, folder, progress=Recorded(count))
        found = run(model, tokens, folder, resume=True, progress=(again := Recorded()))
        assert found.to_json() == whole.to_json() and not folder.exists()
        assert again[0] >= min(told[count - 2], 2 * 16 * LENGTH), "of the two passes nothing is done again"
    assert len(told) > 80


def test_without_resume_it_starts_again(model, tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    with pytest.raises(Stopped):
        run(model, tokens, tmp_path / "c", progress=Recorded(20))
    run(model, tokens, tmp_path / "c", progress=(again := Recorded()))
    assert again[0] == 16 * T


def test_a_checkpoint_of_another_diagnosis_is_refused(model, tokens, tmp_path):
    with pytest.raises(Stopped):
        run(model, tokens, tmp_path / "c", progress=Recorded(20))
    with pytest.raises(InputError, match="seed"):
        run(model, tokens, tmp_path / "c", resume=True, seed=1)
    with pytest.raises(InputError, match="data"):
        run(model, 63 - tokens, tmp_path / "c", resume=True)


def test_a_hybrid_goes_on_too_from_the_start_of_a_pass(tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    hybrid, short = wrap(build_tiny_model(next(tiny for tiny in TINY_MODELS if tiny.title == "Bamba"))), tokens[:, :129]
    whole = run(hybrid, short, max_length=128)
    with pytest.raises(Stopped):
        run(hybrid, short, tmp_path / "c", max_length=128, progress=Recorded(4))
    assert run(hybrid, short, tmp_path / "c", max_length=128, resume=True).to_json() == whole.to_json()


def test_the_command_goes_on_with_resume_alone(tmp_path, monkeypatch, capsys):
    text, out = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("a text of its own, said again and again. " * 500)
    Mamba2Recipe(width=16, layers=1, head_dim=8, state_size=8).build(seed=0).save_pretrained(tmp_path / "model")
    command = [
        "diagnose",
        str(tmp_path / "model"),
        "--data",
        str(text),
        "--train-context",
        "16",
        "--tokenizer",
        "bytes",
    ]

    def called(*more):
        with pytest.raises(SystemExit) as ended:
            main([*command, "--max-length", "256", *map(str, more)])
        return ended.value.code, capsys.readouterr()

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("lengthen.diagnosis.diagnosing.effective_remembrance", interrupt)
        assert called("--out", out)[0] == 130
    assert (out / DIAGNOSIS_CHECKPOINT).is_dir()
    code, said = called("--out", out)
    assert code == 2 and "--resume" in said.err
    code, said = called("--out", out, "--resume", "--json")
    whole, again = json.loads(said.out), json.loads(called("--out", tmp_path / "other", "--json")[1].out)
    assert code == 0 and whole == again and not (out / DIAGNOSIS_CHECKPOINT).exists()
    code, said = called("--resume")
    assert code == 2 and "--out" in said.err
