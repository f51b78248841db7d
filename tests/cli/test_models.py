"""check, families and convert as a user types them: what they print, what they write, what they refuse."""

import json

import torch

from tests.cli.running import run


def test_check(capsys, model, tmp_path):
    code, out, err = run(capsys, "check", model, "--json", "--out", tmp_path / "run")
    found = json.loads(out)
    assert code == 0 and found["passed"] and found["family"] == "mamba2" and err == ""
    assert set(found["checks"][0]) == {"name", "passed", "value", "tolerance", "meaning"}
    assert (tmp_path / "run" / "report.html").exists() and (tmp_path / "run" / "run.json").exists()


def test_check_of_several_models_tells_of_each(capsys, model):
    code, out, _ = run(capsys, "check", model, model, "--json")
    assert code == 0 and [m["passed"] for m in json.loads(out)["models"]] == [True, True]


def test_check_in_words(capsys, model):
    code, out, _ = run(capsys, "check", model)
    assert code == 0 and "passed" in out and "token-by-token" in out


def test_check_as_is_tells_what_the_library_does(capsys, model):
    code, out, _ = run(capsys, "check", "--as-is", model, "--json")
    found = json.loads(out)["models"][0]
    assert code == 3 and {c["name"] for c in found["checks"] if not c["passed"]} >= {
        "gradient-checkpointing",
        "packed-rows",
    }


def test_families(capsys):
    code, out, _ = run(capsys, "families")
    assert code == 0 and "mamba2 (transformers)" in out and "GraniteMoeHybrid" in out and "Kernels: classic" in out


def test_there_and_back(capsys, model, tmp_path):
    code, out, err = run(capsys, "convert", model, tmp_path / "other", "--to", "mamba_ssm", "--json")
    found = json.loads(out)
    assert code == 0 and err == "" and found["largest_logit_difference"] <= 1e-5
    assert found["source_format"] == "transformers" and found["destination_format"] == "mamba_ssm"
    assert "lm_head.weight" in torch.load(tmp_path / "other/pytorch_model.bin", weights_only=True)
    code, out, err = run(capsys, "convert", tmp_path / "other", tmp_path / "back")
    assert code == 0 and err == "" and "Largest difference of logits over 64 tokens: " in out
    assert (tmp_path / "back/model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


def test_a_mamba_ssm_directory_passes_the_check(capsys, model, tmp_path):
    assert run(capsys, "convert", model, tmp_path / "other", "--to", "mamba_ssm")[0] == 0
    code, out, err = run(capsys, "check", tmp_path / "other", "--json")
    assert code == 0 and json.loads(out)["family"] == "mamba2" and err == ""


def test_what_is_refused(capsys, model, tmp_path):
    assert run(capsys, "convert", model, tmp_path / "other", "--to", "fla")[0] == 0
    refused = [
        ([model, tmp_path / "other", "--to", "fla"], "exists already"),
        ([model, tmp_path / "new"], "already"),
        ([model, tmp_path / "new", "--to", "jax"], "jax"),
        ([tmp_path / "nothing", tmp_path / "new"], "does not exist"),
        ([model], "destination"),
    ]
    for arguments, reason in refused:
        code, out, err = run(capsys, "convert", *arguments)
        assert code == 2 and out == "" and reason in err.lower() and err.count("\n") == 1, err
    assert run(capsys, "convert", model, tmp_path / "other", "--to", "mamba_ssm", "--overwrite")[0] == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other"]


def test_a_full_disk_leaves_what_stood_there(capsys, model, tmp_path, monkeypatch):
    assert run(capsys, "convert", model, tmp_path / "other", "--to", "mamba_ssm")[0] == 0
    before = (tmp_path / "other/pytorch_model.bin").read_bytes()
    save = torch.save
    monkeypatch.setattr(torch, "save", lambda held, path: save(held, "/dev/full"))
    code, _, err = run(capsys, "convert", model, tmp_path / "other", "--to", "mamba_ssm", "--overwrite")
    assert code == 4 and "disk is full" in err and err.count("\n") == 1, err
    assert (tmp_path / "other/pytorch_model.bin").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["other"]


def test_a_file_in_the_way_of_the_destination(capsys, model, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "convert", model, tmp_path / "file/other", "--to", "fla")
    assert code == 2 and "cannot be written" in err and err.count("\n") == 1
