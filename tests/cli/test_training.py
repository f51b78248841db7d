"""post-train and pretrain as a user types them: a result, a model and a page."""

import json

import pytest

from tests.cli.running import run
from tests.conftest import SHAPES, tiny_mamba2


@pytest.mark.parametrize("intervention", ["state-passing", "tbptt", "fitted-noise", "random-noise", "zero"])
def test_post_train(capsys, model, text, tmp_path, intervention):
    out = tmp_path / "run"
    code, printed, _ = run(
        capsys,
        "post-train",
        model,
        "--data",
        text,
        "--train-context",
        32,
        "--steps",
        3,
        "--intervention",
        intervention,
        "--out",
        out,
        "--json",
    )
    assert code == 0 and len(json.loads(printed)["losses"]) == 3
    assert {"run.json", "metrics.jsonl", "results", "model", "report.html", "figures"} <= {
        p.name for p in out.iterdir()
    }
    assert run(capsys, "check", out / "model")[0] == 0


@pytest.mark.acceptance
@pytest.mark.parametrize("intervention", ["state-passing", "tbptt", "fitted-noise", "random-noise", "zero"])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_random_checkpoints_of_every_shape(capsys, text, tmp_path, shape, intervention):
    """check passes, twenty steps run, and the saved model in plain transformers gives the same logits."""
    import torch
    from transformers import Mamba2ForCausalLM

    from lengthen import load
    from lengthen.models.agreement import relative_error

    tiny_mamba2(**SHAPES[shape]).save_pretrained(tmp_path / "model")
    assert run(capsys, "check", tmp_path / "model")[0] == 0
    arguments = [
        "--data",
        text,
        "--train-context",
        64,
        "--steps",
        20,
        "--intervention",
        intervention,
        "--out",
        tmp_path / "run",
    ]
    assert run(capsys, "post-train", tmp_path / "model", *arguments)[0] == 0
    plain, wrapped = (
        Mamba2ForCausalLM.from_pretrained(tmp_path / "run" / "model").eval(),
        load(tmp_path / "run" / "model"),
    )
    ids = torch.randint(256, (2, 300), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        error = relative_error(wrapped(ids).logits, plain(ids).logits)
    print(f"{shape}, {intervention}: logits differ by {error:.1e}")
    assert error < 1e-5


def test_pretrain_and_report(capsys, tmp_path):
    out = tmp_path / "run"
    arguments = [
        "--steps",
        3,
        "--width",
        32,
        "--head-dim",
        16,
        "--state-size",
        8,
        "--layers",
        1,
        "--decay-range",
        0.01,
        0.1,
    ]
    assert run(capsys, "pretrain", *arguments, "--out", out, "--json")[0] == 0
    (out / "report.html").unlink()
    assert run(capsys, "report", out)[0] == 0 and (out / "report.html").exists()


def test_what_a_library_raises_is_a_sentence_too(capsys, model, text, tmp_path):
    (tmp_path / "wrong.yaml").write_text("training: {weight_decay: much}\n")
    more = ["--data", text, "--train-context", 32, "--config", tmp_path / "wrong.yaml", "--out", tmp_path / "run"]
    code, out, err = run(capsys, "post-train", model, *more)
    assert code == 4 and out == "" and err.startswith("lengthen: The run failed (TypeError") and err.count("\n") == 1
