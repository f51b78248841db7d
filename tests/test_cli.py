"""The commands as a user types them: results as JSON, one sentence for bad input, exit codes, nothing half-written."""

import json
import subprocess
import sys

import pytest

from lengthen.cli import main
from tests.conftest import SHAPES, tiny_mamba2


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_mamba2(n_groups=2).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    from lengthen.data import bundled_plays

    path = tmp_path_factory.mktemp("text") / "plays.txt"
    path.write_text("".join(d.text for d in bundled_plays()[1])[:300_000])
    return path


def run(capsys, *arguments):
    """(exit code, standard output, standard error)"""
    with pytest.raises(SystemExit) as exit_:
        main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err


def test_check(capsys, model, tmp_path):
    code, out, err = run(capsys, "check", model, "--json", "--out", tmp_path / "run")
    found = json.loads(out)
    assert code == 0 and found["passed"] and found["family"] == "mamba2" and err == ""
    assert set(found["checks"][0]) == {"name", "passed", "value", "tolerance", "meaning"}
    assert (tmp_path / "run" / "report.html").exists() and (tmp_path / "run" / "run.json").exists()


def test_check_of_several_models_tells_of_each(capsys, model):
    code, out, _ = run(capsys, "check", model, model, "--json")
    assert code == 0 and [m["passed"] for m in json.loads(out)["models"]] == [True, True]


def test_what_a_library_raises_is_a_sentence_too(capsys, model, text, tmp_path):
    (tmp_path / "wrong.yaml").write_text("training: {weight_decay: much}\n")
    more = ["--data", text, "--train-context", 32, "--config", tmp_path / "wrong.yaml", "--out", tmp_path / "run"]
    code, out, err = run(capsys, "post-train", model, *more)
    assert code == 4 and out == "" and err.startswith("lengthen: The run failed (TypeError") and err.count("\n") == 1


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


def test_diagnose(capsys, model, text, tmp_path):
    code, out, err = run(
        capsys,
        "diagnose",
        model,
        "--data",
        text,
        "--train-context",
        32,
        "--max-length",
        1024,
        "--positions",
        100,
        1000,
        "--json",
        "--out",
        tmp_path / "run",
    )
    found = json.loads(out)
    assert code == 0 and found["n"] == 16 and found["buckets"][-1]["end"] == 1024 and err == ""
    assert [p["position"] for p in found["positions"]] == [100, 1000]
    assert json.loads((tmp_path / "run" / "results" / "diagnosis.json").read_text())["verdict"] == found["verdict"]
    assert (tmp_path / "run" / "report.html").exists()


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


def test_a_run_is_not_written_over_unless_asked(capsys, model, tmp_path):
    out = tmp_path / "run"
    assert run(capsys, "check", model, "--out", out)[0] == 0
    before = {f: (tmp_path / f).read_bytes() for f in files(tmp_path) if (tmp_path / f).is_file()}
    code, _, err = run(capsys, "check", model, "--out", out)
    assert code == 2 and "--overwrite" in err
    assert run(capsys, "check", tmp_path / "nothing", "--out", out, "--overwrite")[0] == 2  # the old run comes back
    assert {f: (tmp_path / f).read_bytes() for f in files(tmp_path) if (tmp_path / f).is_file()} == before
    assert run(capsys, "check", model, "--out", out, "--overwrite", "--seed", 1)[0] == 0
    assert json.loads((out / "run.json").read_text())["seed"] == 1 and [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_run_stopped_before_its_page_says_how_to_write_it(capsys, model, tmp_path):
    out = tmp_path / "run"
    assert run(capsys, "check", model, "--out", out)[0] == 0
    (out / "report.html").unlink()
    code, _, err = run(capsys, "check", model, "--out", out)
    assert code == 2 and f"`lengthen report {out}`" in err
    assert run(capsys, "report", out)[0] == 0 and (out / "report.html").exists()


@pytest.mark.parametrize("more", [[], ["--overwrite"]])
def test_a_second_command_leaves_a_running_one_alone(capsys, model, tmp_path, monkeypatch, more):
    from lengthen import models

    check, tried = models.check, []

    def meeting(*args, **kwargs):
        before = (tmp_path / "run" / "run.json").read_bytes()
        tried.append(run(capsys, "check", model, "--out", tmp_path / "run", "--seed", 1, *more))
        assert (tmp_path / "run" / "run.json").read_bytes() == before
        return check(*args, **kwargs)

    monkeypatch.setattr(models, "check", meeting)
    assert run(capsys, "check", model, "--out", tmp_path / "run")[0] == 0
    assert [code for code, _, _ in tried] == [2] and "Another run is writing to" in tried[0][2]
    assert [p.name for p in tmp_path.iterdir()] == ["run"] and (tmp_path / "run" / "report.html").exists()


def test_an_interruption_says_so(capsys, model, monkeypatch):
    from lengthen import models

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "check", interrupted)
    code, _, err = run(capsys, "check", model)
    assert code == 130 and "Interrupted" in err


def test_options_from_a_file(capsys, model, text, tmp_path):
    config = tmp_path / "options.yaml"
    config.write_text("train-context: 32\nsteps: 4\nrows: 8\ntraining:\n  logging_steps: 2\n  adam_beta2: 0.99\n")
    code, printed, _ = run(
        capsys,
        "post-train",
        model,
        "--data",
        text,
        "--config",
        config,
        "--steps",
        2,
        "--out",
        tmp_path / "run",
        "--json",
    )
    found = json.loads(printed)
    assert code == 0 and found["steps"] == 2 and found["rows"] == 8  # what is typed wins over the file
    assert found["configuration"]["config"] == {"logging_steps": 2, "adam_beta2": 0.99}


def test_options_for_the_trainer_are_refused_where_nothing_is_trained(capsys, model, tmp_path):
    config = tmp_path / "options.yaml"
    config.write_text("training:\n  logging_steps: 2\n")
    code, _, err = run(capsys, "check", model, "--config", config)
    assert code == 2 and "`training` in" in err and "post-train" in err


def test_families(capsys):
    code, out, _ = run(capsys, "families")
    assert code == 0 and "mamba2 (transformers)" in out and "GraniteMoeHybrid" in out and "Kernels: classic" in out


def test_a_reader_that_has_read_enough_is_no_failure():
    command = f"{sys.executable} -m lengthen families | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def files(folder):
    return sorted(str(p) for p in folder.rglob("*"))


def spoiled(tmp_path, kind):
    path = tmp_path / "text.txt"
    path.write_bytes({"empty": b"", "short": b"abc", "bytes": b"fine so far \xff\xfe and more" * 100}[kind])
    return path


BAD = {
    "a fraction of a position": (
        ["diagnose", "{model}", "--data", "{text}", "--train-context", "32.5"],
        "32.5 is no whole number",
    ),
    "more threads than are granted": (["check", "{model}", "--threads", "5000"], "number of threads is 5000"),
    "processes that are not started": (
        [
            "post-train",
            "{model}",
            "--data",
            "{text}",
            "--train-context",
            "32",
            "--processes",
            "2",
            "--out",
            "{tmp}/run",
        ],
        "--processes is for --dry-run",
    ),
    "a device without values": (["check", "{model}", "--device", "meta"], "meta holds no values"),
    "missing model": (["diagnose", "{tmp}/nothing", "--data", "{text}", "--train-context", "32"], "does not exist"),
    "missing text": (["diagnose", "{model}", "--data", "{tmp}/nothing.txt", "--train-context", "32"], "nothing.txt"),
    "short text": (["diagnose", "{model}", "--data", "{short}", "--train-context", "32"], "longest document"),
    "empty text": (["diagnose", "{model}", "--data", "{empty}", "--train-context", "32"], "empty"),
    "not UTF-8": (
        ["post-train", "{model}", "--data", "{bytes}", "--train-context", "32", "--out", "{tmp}/run"],
        "UTF-8",
    ),
    "T of 0": (["diagnose", "{model}", "--data", "{text}", "--train-context", "0"], "training context is 0"),
    "T of 0 in training": (
        ["post-train", "{model}", "--data", "{text}", "--train-context", "0", "--out", "{tmp}/run"],
        "training context is 0",
    ),
    "steps of 0": (
        ["post-train", "{model}", "--data", "{text}", "--train-context", "32", "--steps", "0", "--out", "{tmp}/run"],
        "steps is 0",
    ),
    "L below T": (
        ["diagnose", "{model}", "--data", "{text}", "--train-context", "64", "--max-length", "32"],
        "below the training context",
    ),
    "no such intervention": (
        [
            "post-train",
            "{model}",
            "--data",
            "{text}",
            "--train-context",
            "32",
            "--intervention",
            "magic",
            "--out",
            "{tmp}/run",
        ],
        "choose one of",
    ),
    "unwritable out": (
        ["diagnose", "{model}", "--data", "{text}", "--train-context", "32", "--out", "{text}/run"],
        "--out",
    ),
    "unwritable out of the demo": (["demo", "--out", "{text}/run"], "--out"),
    "unknown command": (["diagnoze"], "diagnoze"),
    "unknown option": (["check", "{model}", "--no-such-option", "1"], "no-such-option"),
    "missing option": (["diagnose", "{model}", "--data", "{text}"], "train-context"),
    "not a number": (["diagnose", "{model}", "--data", "{text}", "--train-context", "many"], "many"),
    "nothing to benchmark": (["bench", "magic"], "nothing called magic"),
    "no model": (["check"], "No model was given"),
    "no such device": (["check", "{model}", "--device", "cuda:99"], "cuda:99"),
    "no such dtype": (["check", "{model}", "--dtype", "float8"], "float8"),
    "negative seed": (["check", "{model}", "--seed", "-1"], "seed"),
    "no threads": (["check", "{model}", "--threads", "0"], "threads"),
    "a fraction for a seed": (["check", "{model}", "--seed", "1.5"], "1.5 is no whole number"),
    "fractions for counts": (
        ["diagnose", "{model}", "--data", "{text}", "--train-context", "32", "--positions", "64", "2.5"],
        "2.5 is no whole number",
    ),
    "a segment of nothing": (
        ["diagnose", "{model}", "--data", "{text}", "--train-context", "32", "--segment", "0"],
        "segment has 0 positions",
    ),
    "a model for a tokenizer": (
        ["diagnose", "{model}", "--data", "{text}", "--train-context", "32", "--tokenizer", "{model}"],
        "holds no tokenizer",
    ),
    "a model without a name": (["check", ""], "has no name"),
    "a run folder without a name": (["check", "{model}", "--out", "."], "no name of its own"),
    "a run folder for a model": (["check", "{trained}"], "its model is"),
    "a plan of an unknown model": (
        ["post-train", "{unknown}", "--data", "{text}", "--train-context", "32", "--dry-run"],
        "zebra",
    ),
    "no such task to train on": (
        ["post-train", "{model}", "--task", "zebra", "--train-context", "32", "--out", "{tmp}/run"],
        "no task 'zebra'",
    ),
    "a state of nothing": (["pretrain", "--state-size", "0", "--out", "{tmp}/run"], "state_size is 0"),
    "groups that do not divide heads": (["pretrain", "--groups", "3", "--out", "{tmp}/run"], "by 3 groups"),
    "missing configuration": (["check", "{model}", "--config", "{tmp}/nothing.yaml"], "nothing.yaml"),
    "no run": (["report", "{tmp}/nothing"], "nothing"),
    "a page elsewhere": (["report", "{tmp}/nothing", "--out", "{tmp}/run"], "do without --out"),
    "a run folder of a conversion": (["convert", "{model}", "{tmp}/to", "--out", "{tmp}/run"], "do without --out"),
    "a run folder of a list": (["families", "--out", "{tmp}/run"], "--verify"),
    "tokenizer of another model": (["diagnose", "{small}", "--data", "{text}", "--train-context", "32"], "vocabulary"),
    "no recurrence": (["check", "{transformer}"], "no recurrent layer"),
    "corrupt weights": (["check", "{corrupt}"], "cannot be loaded"),
}


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("others")
    tiny_mamba2(vocab_size=64).save_pretrained(folder / "small")
    config = LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=256
    )
    LlamaForCausalLM(config).save_pretrained(folder / "transformer")
    tiny_mamba2().save_pretrained(folder / "corrupt")
    tiny_mamba2().save_pretrained(folder / "trained" / "model")
    (folder / "unknown").mkdir()
    (folder / "unknown" / "config.json").write_text('{"model_type": "zebra"}')
    weights = folder / "corrupt" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:3000])
    return folder


@pytest.mark.parametrize("name", list(BAD))
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(capsys, tmp_path, model, text, others, name):
    arguments, match = BAD[name]
    places = {"tmp": tmp_path, "model": model, "text": text}
    places |= {n: others / n for n in ("small", "transformer", "corrupt", "trained", "unknown")}
    places |= dict.fromkeys(("empty", "short", "bytes"), "")
    for kind in ("empty", "short", "bytes"):
        if any("{" + kind + "}" in a for a in arguments):
            places[kind] = spoiled(tmp_path, kind)
    before = files(tmp_path)
    code, out, err = run(capsys, *(a.format(**places) for a in arguments))
    assert code == 2, (out, err)
    assert match in err and out == ""
    assert err.startswith("lengthen: ") and err.count("\n") == 1 and "Traceback" not in err, err
    assert files(tmp_path) == before


def test_overwrite_replaces_no_folder_that_is_no_run(capsys, tmp_path, model):
    (tmp_path / "mine" / "results").mkdir(parents=True)
    (tmp_path / "mine" / "results" / "thesis.tex").write_text("years of work")
    code, _, err = run(capsys, "check", model, "--out", tmp_path / "mine", "--overwrite")
    assert code == 2 and "not the folder of a run" in err
    assert (tmp_path / "mine" / "results" / "thesis.tex").read_text() == "years of work"


def test_debug_shows_the_traceback(capsys, tmp_path):
    code, _, err = run(capsys, "check", tmp_path / "nothing", "--debug")
    assert code == 2 and "Traceback" in err


def test_a_state_of_another_model_is_named(tmp_path):
    from lengthen import RecurrentState, wrap, zero_state
    from lengthen.errors import InputError

    zero_state(wrap(tiny_mamba2(state_size=8)), 1).save(tmp_path / "state.safetensors")
    with pytest.raises(InputError, match="another model"):
        RecurrentState.load(tmp_path / "state.safetensors").require_layout(zero_state(wrap(tiny_mamba2()), 1))


def test_without_a_terminal_a_long_run_says_that_it_is_alive(capsys, monkeypatch):
    from lengthen.cli import output

    with output.Progress(output.Common()) as progress:
        progress.stage("post-train", 1, 500)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(output, "QUIET_SECONDS", 0.0)
        progress.stage("post-train", 120, 1500)
    assert capsys.readouterr().err == "lengthen: post-train: 120 of 1,500\n"
