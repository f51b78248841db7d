"""A run that was killed and resumed ends exactly as one that never stopped."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lengthen import TBPTT, FittedNoise, Mixture, RandomNoise, StatePassing, post_train
from lengthen.errors import InputError
from lengthen.training.checkpoints import checkpoints_in
from tests.conftest import tiny_mamba2

RUN = {"train_context": 16, "steps": 60, "rows": 8, "learning_rate": 3e-3, "save_steps": 7}
FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "shutil.rmtree"}
forked = multiprocessing.get_context("fork")


def train(out, corpus, make=StatePassing, resume=False, model=tiny_mamba2, **options):
    return post_train(model(), corpus, intervention=make(), out=out, resume=resume, **{**RUN, **options})


def start_child(work, event=None):
    """Starts the work in a forked process that kills itself at its n-th file event; (process, its events)."""
    counted = forked.Value("l", 0)

    def child():
        os.setsid()

        def count(name, _):
            if name in FILE_EVENTS:
                counted.value += 1
                if counted.value == event:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        work()

    process = forked.Process(target=child)
    process.start()
    return process, counted


def in_child(work, seconds=None, event=None):
    """Does the work in a forked process, killed after so many seconds or at its n-th file event; (exit code, events)."""
    process, counted = start_child(work, event)
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode, counted.value


def remains(out: Path):
    """All that a run leaves, but for what clocks say: weights, every checkpoint's tensors, log, losses, file names."""
    found = {"model": load_file(out / "model" / "model.safetensors")}
    for checkpoint in checkpoints_in(out):
        found[checkpoint.name] = load_file(checkpoint / "model.safetensors")
        found[f"{checkpoint.name} optimizer"] = torch.load(checkpoint / "optimizer.pt", weights_only=True)
        found[f"{checkpoint.name} schedule"] = torch.load(checkpoint / "scheduler.pt", weights_only=True)
        for path in checkpoint.glob("rng_state*.pth"):
            found[f"{checkpoint.name} {path.stem}"] = torch.load(path, weights_only=False)
        for path in checkpoint.glob("process-*/**/*.safetensors"):
            found[str(path.relative_to(out))] = load_file(path)
        for path in checkpoint.glob("process-*/**/*.json"):
            found[str(path.relative_to(out))] = timeless(json.loads(path.read_text()))
    lines = (out / "metrics.jsonl").read_text().splitlines()
    found["metrics"] = [timeless(json.loads(line)) for line in lines]
    found["record"] = timeless(json.loads((out / "results" / "training.json").read_text()))
    found["files"] = sorted(str(p.relative_to(out)) for p in out.rglob("*"))
    return found


def timeless(document):
    clocks = ("seconds", "runtime", "per_second", "out")
    return {name: value for name, value in document.items() if not name.endswith(clocks)}


def assert_same(one, other, name=""):
    if isinstance(one, dict):
        assert one.keys() == other.keys(), name
        for key in one:
            assert_same(one[key], other[key], f"{name}/{key}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), name
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), name
        for i, (a, b) in enumerate(zip(one, other)):
            assert_same(a, b, f"{name}/{i}")
    else:
        assert str(one) == str(other), name


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, plays):
    """(its remains, its file events, its seconds)"""
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    began = time.perf_counter()
    code, events = in_child(lambda: train(out, plays[0]))
    assert code == 0
    return remains(out), events, time.perf_counter() - began


def kill_and_resume(out, plays, uninterrupted, generator, kills):
    """Kills a run so many times, at random moments or random file events, each resumed; compares what it ends with."""
    expected, events, seconds = uninterrupted
    for i in range(kills):
        moment = {"seconds": generator.uniform(0.1, seconds)} if i % 2 else {"event": generator.randrange(1, events)}
        code, _ = in_child(lambda: train(out, plays[0], resume=True), **moment)
        assert code in (0, -signal.SIGKILL)
    assert in_child(lambda: train(out, plays[0], resume=True))[0] == 0
    assert_same(remains(out), expected)


def test_three_kills_change_nothing(tmp_path, plays, uninterrupted):
    kill_and_resume(tmp_path / "run", plays, uninterrupted, random.Random(0), kills=3)


def test_a_checkpoint_without_its_marker_counts_as_not_there(tmp_path, plays, trained, monkeypatch):
    from lengthen.training import checkpoints

    def killed(path, text):
        os.kill(os.getpid(), signal.SIGKILL)

    def work():
        monkeypatch.setattr(checkpoints, "write_text", killed)
        train(tmp_path / "run", plays[0], steps=4, save_steps=2)

    assert in_child(work)[0] == -signal.SIGKILL
    assert (tmp_path / "run" / "checkpoint-2").exists() and not checkpoints_in(tmp_path / "run")
    train(tmp_path / "run", plays[0], resume=True, steps=4, save_steps=2)
    assert_same(remains(tmp_path / "run"), remains(trained))


def test_a_run_killed_before_it_dropped_old_checkpoints_drops_them(tmp_path, plays, trained, monkeypatch):
    from lengthen.training import checkpoints

    def work():
        monkeypatch.setattr(checkpoints, "keep_last", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        train(tmp_path / "run", plays[0], resume=True, steps=4, save_steps=2)

    shutil.copytree(trained, tmp_path / "run")
    shutil.copytree(trained / "checkpoint-2", tmp_path / "run" / "checkpoint-1")
    assert in_child(work)[0] == -signal.SIGKILL and len(checkpoints_in(tmp_path / "run")) == 3
    train(tmp_path / "run", plays[0], resume=True, steps=4, save_steps=2)
    assert [path.name for path in checkpoints_in(tmp_path / "run")] == ["checkpoint-2", "checkpoint-4"]


@pytest.mark.acceptance
@pytest.mark.parametrize("seed", range(20))
def test_a_kill_at_any_moment_changes_nothing(tmp_path, plays, uninterrupted, seed):
    kill_and_resume(tmp_path / "run", plays, uninterrupted, random.Random(100 + seed), kills=1 + seed % 3)


@pytest.mark.parametrize(
    "make",
    [TBPTT, FittedNoise, lambda: RandomNoise(2.0, relative=True), lambda: StatePassing(p_zero=0.3, window_state=True)],
    ids=["tbptt", "fitted", "random", "state passing"],
)
def test_every_intervention_resumes_in_the_middle_of_anything(tmp_path, plays, make):
    """Between two lines of the log, within micro-batches' steps, with dropout drawing from the global generator."""
    options = {"steps": 13, "save_steps": 5, "accumulation": 2, "model": with_dropout}
    train(tmp_path / "whole", plays[0], make, **options)
    stop_after(5, lambda: train(tmp_path / "parts", plays[0], make, **options))
    torch.rand(7)  # whatever another process has drawn
    train(tmp_path / "parts", plays[0], make, resume=True, **options)
    expected, found = remains_of_adapter(tmp_path / "whole"), remains_of_adapter(tmp_path / "parts")
    assert_same(found, expected)


def test_a_mixture_resumes(tmp_path, plays):
    def make():
        return Mixture([(StatePassing(zero_fraction=0), 0.5), (FittedNoise(), 0.5)])

    options = {"steps": 8, "save_steps": 3}
    train(tmp_path / "whole", plays[0], make, **options)
    stop_after(3, lambda: train(tmp_path / "parts", plays[0], make, **options))
    train(tmp_path / "parts", plays[0], make, resume=True, **options)
    assert_same(remains(tmp_path / "parts"), remains(tmp_path / "whole"))


def with_dropout():
    import peft

    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["in_proj"], lora_dropout=0.2, init_lora_weights=False)
    return peft.get_peft_model(tiny_mamba2(), config)


def stop_after(step, work):
    """Runs until the checkpoint of this step is complete, and not further."""
    from lengthen.training import checkpoints

    class Stopped(BaseException):
        pass

    seal = checkpoints.seal

    def seal_and_stop(files, checkpoint, identity):
        seal(files, checkpoint, identity)
        if checkpoint.name == f"checkpoint-{step}":
            raise Stopped

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(checkpoints, "seal", seal_and_stop)
        work()


def remains_of_adapter(out):
    found = {
        str(path.relative_to(out)): load_file(path) for path in out.rglob("*.safetensors") if "model" in path.parts[-1]
    }
    return found | {"metrics": (out / "metrics.jsonl").read_text().splitlines()[:-1]}


def test_resuming_a_finished_run_leaves_it_as_it_is(tmp_path, plays):
    options = {"steps": 4, "save_steps": 3}
    first = train(tmp_path, plays[0], **options)
    before = remains(tmp_path)
    again = train(tmp_path, plays[0], resume=True, **options)
    assert again.losses == first.losses and again.seconds >= first.seconds * 0.5
    assert_same(remains(tmp_path), before)
    with pytest.raises(InputError, match="holds the checkpoints of a run"):
        train(tmp_path, plays[0], **options)


def test_a_folder_that_a_run_writes_to_takes_no_second_one(tmp_path, plays):
    class Meeting(StatePassing):
        def initial_state(self, rows, zero):
            if rows.step == 1:
                with pytest.raises(InputError, match="Another run is writing to"):
                    train(tmp_path, plays[0], resume=True, steps=2, save_steps=1)
            return super().initial_state(rows, zero)

    train(tmp_path, plays[0], Meeting, steps=2, save_steps=1)
    train(tmp_path, plays[0], resume=True, steps=2, save_steps=1)  # it has ended


def test_the_last_two_checkpoints_are_kept(tmp_path, plays):
    train(tmp_path, plays[0], steps=8, save_steps=2)
    assert [path.name for path in checkpoints_in(tmp_path)] == ["checkpoint-6", "checkpoint-8"]
    assert sorted(p.name for p in tmp_path.glob("*checkpoint*")) == ["checkpoint-6", "checkpoint-8"]


def damage(path, how):
    if how == "cut off":
        path.write_bytes(path.read_bytes()[:-1])
    elif how == "one bit":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["cut off", "one bit", "gone"])
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt", "process-0/bank.safetensors"])
def test_a_damaged_checkpoint_is_refused_and_the_last_good_one_named(tmp_path, plays, trained, file, how):
    import shutil

    shutil.copytree(trained, tmp_path / "run")
    damage(tmp_path / "run" / "checkpoint-4" / file, how)
    with pytest.raises(
        InputError, match=rf"checkpoint-4 is damaged \({file} .*to resume from .*checkpoint-2, the last"
    ):
        train(tmp_path / "run", plays[0], resume=True, steps=4, save_steps=2)
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")  # as it says
    train(tmp_path / "run", plays[0], resume=True, steps=4, save_steps=2)
    assert_same(remains(tmp_path / "run"), remains(trained))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, plays):
    out = tmp_path_factory.mktemp("trained") / "run"
    train(out, plays[0], steps=4, save_steps=2)
    return out


@pytest.mark.parametrize(
    "change, match",
    [
        ({"learning_rate": 1e-3}, "its learning_rate is 0.003, this run's 0.001"),
        ({"steps": 5}, "its max_steps is 4, this run's 5"),
        ({"seed": 1}, "its seed is 0, this run's 1"),
        ({"make": TBPTT}, "its intervention is .*state-passing.*, this run's .*tbptt"),
        ({"make": lambda: StatePassing(0.5)}, "its intervention is"),
        ({"model": lambda: tiny_mamba2(seed=1)}, "its model is"),
        ({"train_context": 8}, "context is 8"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(plays, trained, change, match):
    with pytest.raises(InputError, match=match):
        train(trained, plays[0], resume=True, **{"steps": 4, "save_steps": 2, **change})


def test_a_checkpoint_of_other_data_is_refused(plays, trained):
    with pytest.raises(InputError, match="The data's fingerprint"):
        train(trained, plays[1], resume=True, steps=4, save_steps=2)


def test_checkpoints_need_a_place_and_a_pace(plays, tmp_path):
    with pytest.raises(InputError, match="name one as `out`"):
        train(None, plays[0])
    with pytest.raises(InputError, match="between two checkpoints are 0"):
        train(tmp_path, plays[0], save_steps=0)


def test_the_command_s_own_words(capsys, tmp_path):
    """--resume begins where nothing is there and says so; then it goes on, also from a run that is done."""
    from lengthen.cli import main

    tiny_mamba2().save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("a line that goes on and on; " * 90)
    options = ["--data", tmp_path / "text.txt", "--train-context", 16, "--steps", 3, "--save-steps", 2]

    def run(*more):
        with pytest.raises(SystemExit) as exit_:
            main([str(a) for a in ("post-train", tmp_path / "model", *options, "--out", tmp_path / "run", *more)])
        said = capsys.readouterr()
        return exit_.value.code, said.out, said.err

    capsys.readouterr()  # what saving the model said
    code, out, err = run("--resume", "--json")
    assert code == 0 and err.count("\n") == 1 and "no checkpoint to resume from; the run begins afresh" in err
    before = remains(tmp_path / "run")
    again = run("--resume", "--json")
    assert again[0] == 0 and again[2] == "" and json.loads(again[1])["losses"] == json.loads(out)["losses"]
    assert_same(remains(tmp_path / "run"), before)
    for more, words in (((), "go on with --resume"), (("--resume", "--overwrite"), "give one of them")):
        code, _, err = run(*more)
        assert code == 2 and words in err
    assert_same(remains(tmp_path / "run"), before)
    assert run("--overwrite")[0] == 0
