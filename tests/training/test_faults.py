"""What goes wrong is named in one sentence, within a bounded time, and the last good checkpoint stays as it was."""

import errno
import os
import shutil
import subprocess
import sys

import pytest

from lengthen import StatePassing, post_train
from lengthen.cli import main
from lengthen.errors import RunError
from lengthen.training.checkpoints import checkpoints_in
from tests.conftest import tiny_mamba2
from tests.training.launching import start
from tests.training.test_resuming import assert_same, remains

RUN = {"train_context": 16, "rows": 8, "learning_rate": 3e-3, "steps": 6, "save_steps": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, plays):
    out = tmp_path_factory.mktemp("whole") / "run"
    post_train(tiny_mamba2(), plays[0], intervention=StatePassing(), out=out, **RUN)
    return remains(out)


class Spoiling(StatePassing):
    """Spoils a weight, or a gradient alone, in step 3."""

    spoil = "weight"

    def initial_state(self, rows, zero):
        if rows.step == 3:
            scale = self.model.backbone.layers[0].mixer.dt_bias
            if self.spoil == "weight":
                scale.data.fill_(float("nan"))
            else:
                scale.register_hook(lambda gradient: gradient * float("inf"))
        return super().initial_state(rows, zero)


@pytest.mark.parametrize("spoil, what", [("weight", "training loss is nan"), ("gradient", "gradient's norm is")])
def test_what_is_no_number_ends_the_run_before_it_is_stepped_to(tmp_path, plays, whole, spoil, what):
    intervention, model = Spoiling(), tiny_mamba2()
    intervention.spoil, intervention.model = spoil, model
    # The settings of an intervention are told apart by its own names, of which these are none.
    intervention.describe = lambda: StatePassing().describe()
    with pytest.raises(RunError, match=rf"{what}.* at step 3; .*last good checkpoint is .*checkpoint-2\.$"):
        post_train(model, plays[0], intervention=intervention, out=tmp_path, **RUN)
    post_train(tiny_mamba2(), plays[0], intervention=StatePassing(), out=tmp_path, resume=True, **RUN)
    assert_same(remains(tmp_path), whole)


@pytest.mark.parametrize(
    "writer",
    [
        "transformers.modeling_utils.safe_save_file",  # the weights
        "safetensors.torch.save_file",  # the states
        "torch.save",  # the optimiser
        "lengthen.training.checkpoints.write_text",  # the marker
    ],
)
def test_a_full_disk(tmp_path, plays, whole, monkeypatch, writer):
    module, name = writer.rsplit(".", 1)
    write = getattr(sys.modules[module], name)

    def full(*args, **kwargs):
        if checkpoints_in(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(*args, **kwargs)

    with (
        monkeypatch.context() as patch,
        pytest.raises(RunError, match=r"step 4 .*disk is full.*checkpoint-2, the last good"),
    ):
        patch.setattr(writer, full)
        post_train(tiny_mamba2(), plays[0], intervention=StatePassing(), out=tmp_path, **RUN)
    assert [path.name for path in checkpoints_in(tmp_path)] == ["checkpoint-2"]
    post_train(tiny_mamba2(), plays[0], intervention=StatePassing(), out=tmp_path, resume=True, **RUN)
    assert_same(remains(tmp_path), whole)


@pytest.mark.parametrize("size", [100, 400, 600, 800])
def test_a_disk_that_is_really_full(small_disk, plays, size):
    """Of so many KiB: what the system, PyTorch and safetensors say of it is one sentence, wherever it strikes."""
    folder = small_disk(size)
    with pytest.raises(
        RunError, match=r"^The (checkpoint|trained model|metrics)[^.]* cannot be written .*the disk is full"
    ):
        post_train(tiny_mamba2(), plays[0], intervention=StatePassing(), out=folder / "run", **RUN)
    assert [path.name for path in checkpoints_in(folder / "run")] == [p.name for p in (folder / "run").glob("check*")]


@pytest.fixture
def small_disk(tmp_path):
    def make(size):
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(tmp_path)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("no small disk can be mounted here")
        return tmp_path

    yield make
    subprocess.run(["umount", str(tmp_path)], capture_output=True)


def said(capsys, *arguments):
    """(exit code, standard error)"""
    with pytest.raises(SystemExit) as exit_:
        main([str(a) for a in arguments])
    return exit_.value.code, capsys.readouterr().err


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_mamba2().save_pretrained(folder)
    return folder


def test_an_unreadable_shard_in_the_middle(capsys, model, tmp_path):
    import pyarrow
    from pyarrow import parquet

    (tmp_path / "data").mkdir()
    for i in range(3):
        rows = [f"shard {i} has a row of number {n}; " * 9 for n in range(40)]
        parquet.write_table(pyarrow.table({"text": rows}), tmp_path / "data" / f"{i}.parquet")
    shard = tmp_path / "data" / "1.parquet"
    shard.write_bytes(shard.read_bytes()[:-100])
    more = ["--data", tmp_path / "data", "--train-context", 16, "--steps", 2, "--out", tmp_path / "run"]
    code, err = said(capsys, "post-train", model, *more)
    assert code == 2 and "1.parquet" in err and err.count("\n") == 1 and not (tmp_path / "run").exists()


def test_a_tokenizer_that_does_not_fit_and_changed_data(capsys, model, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(400)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "tokenizer")
    text = tmp_path / "text.txt"
    text.write_text("w1 w2 w399 " * 200)
    more = ["--data", text, "--train-context", 16, "--steps", 4, "--save-steps", 2, "--out", tmp_path / "run"]
    code, err = said(capsys, "post-train", model, *more, "--tokenizer", tmp_path / "tokenizer")
    assert code == 2 and "token id 399" in err and err.count("\n") == 1 and not (tmp_path / "run").exists()

    assert said(capsys, "post-train", model, *more)[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    text.write_text("w1 w2 w398 " * 200)
    code, err = said(capsys, "post-train", model, *more, "--resume")
    assert code == 2 and "fingerprint" in err and err.count("\n") == 1
    after = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    changed = {path.name for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed <= {"run.json"}
    code, err = said(capsys, "post-train", model, *more)
    assert code == 2 and "--resume" in err


WORKER = """
import os, signal, sys
from lengthen.cli import main
from lengthen.training import trainer

given = trainer.Rows.of

def rows_of(batch, step, **more):
    if step == 3 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    return given(batch, step, **more)

trainer.Rows.of = rows_of
main(sys.argv[2:])
"""


@pytest.mark.parametrize("how", ["SIGKILL", pytest.param("SIGSTOP", marks=pytest.mark.acceptance)])
def test_a_process_that_ends_or_hangs_does_not_keep_the_other_waiting(model, tmp_path, how):
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "text.txt").write_text("a line that goes on and on; " * 200)
    (tmp_path / "options.yaml").write_text("training: {ddp_timeout: 5}\n")
    options = ["post-train", str(model), "--data", "text.txt", "--train-context", "16", "--rows", "8", "--steps", "6"]
    options += ["--save-steps", "2", "--out", "run", "--config", "options.yaml", "--threads", "1"]
    first, second = start([sys.executable, "worker.py", how, *options], tmp_path)
    try:
        _, err = first.communicate(timeout=120)
    finally:
        second.kill()
        second.communicate()
    assert first.returncode == 4 and "Traceback" not in err
    *_, last = err.splitlines()  # PyTorch has had its say before
    assert last.startswith("lengthen: Process 0 of 2 lost another one") and last.endswith("go on with --resume.")
    assert [path.name for path in checkpoints_in(tmp_path / "run")] == ["checkpoint-2"]
