"""Two processes share a step's rows and learn what one learns."""

import json
import os
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from tests.conftest import tiny_mamba2

WORKER = """
import sys
from lengthen.cli import main
from lengthen.training import trainer

given = trainer.Rows.of
counted = []


def counting(batch, step, **more):
    rows = given(batch, step, **more)
    counted.append(len(rows))
    return rows


trainer.Rows.of = counting
try:
    main(sys.argv[1:])
finally:
    assert counted == [4, 4, 4], counted  # of eight
"""


@pytest.mark.parametrize("intervention", ["tbptt", "fitted-noise"])
def test_two_processes_equal_one(tmp_path, intervention):
    tiny_mamba2().save_pretrained(tmp_path / "model")
    (tmp_path / "text").mkdir()
    for i in range(9):
        (tmp_path / "text" / f"{i}.txt").write_text(f"the tale of number {i} goes on and on; " * (1 + 5 * (i % 4)))
    (tmp_path / "sgd.yaml").write_text("training: {optim: sgd}\n")
    (tmp_path / "worker.py").write_text(WORKER)
    common = ["post-train", "model", "--data", "text", "--train-context", "32", "--steps", "3", "--rows", "8"]
    common += ["--intervention", intervention, "--learning-rate", "0.1", "--threads", "1", "--json"]
    common += ["--config", "sgd.yaml", "--out"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    one, two = (
        subprocess.run([*command, *common, out], cwd=tmp_path, env=environment, capture_output=True, text=True)
        for command, out in (([sys.executable, "-m", "lengthen"], "one"), ([*launch, "worker.py"], "two"))
    )
    assert (one.returncode, two.returncode) == (0, 0), one.stderr + two.stderr
    assert json.loads(two.stdout)["losses"] == pytest.approx(json.loads(one.stdout)["losses"], rel=1e-5)
    start, a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "one/model", "two/model"))
    moved = sum(float((a[n] - start[n]).norm() ** 2) for n in a) ** 0.5
    assert sum(float((a[n] - b[n]).norm() ** 2) for n in a) ** 0.5 < 1e-3 * moved  # float32 rounding of small steps


def test_accelerate_launch_takes_every_option_from_a_file(tmp_path):
    tiny_mamba2().save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("the tale goes on and on, line after line; " * 90)
    options = "data: text.txt\ntrain-context: 32\nsteps: 3\nrows: 8\nsave-steps: 2\nthreads: 1\nout: run\n"
    (tmp_path / "options.yaml").write_text(options + "training: {logging_steps: 1}\n")
    command = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "-m", "lengthen"]
    command += ["post-train", "model", "--config", "options.yaml", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["losses"]) == 3
    checkpoint = tmp_path / "run" / "checkpoint-3"
    assert sorted(p.name for p in checkpoint.glob("process-*")) == ["process-0", "process-1"]
    lanes = [json.loads((checkpoint / f"process-{i}" / "bank.json").read_text())["lanes"] for i in range(2)]
    assert lanes == [[0, 1, 2, 3], [4, 5, 6, 7]]
