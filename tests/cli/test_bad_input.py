"""Bad input to every command is one sentence, exit code 2, and leaves nothing behind."""

import pytest

from tests.cli.running import files, run
from tests.conftest import tiny_mamba2


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
    "corrupt weights": (["check", "{corrupt}"], "are damaged"),
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
