"""Checkpoint folders: whole or not there, in the order of their steps, trusted where they are what was written."""

import errno
import json
import os
import shutil

import pytest

from lengthen.errors import InputError, RunError
from lengthen.training import checkpoints
from lengthen.training.checkpoints import checkpoints_in, latest, require_usable

RUN = {"model": "a1", "seed": 0}


def write(folder, step, content="weights"):
    files = checkpoints.begin(folder) / "files"
    (files / "process-0").mkdir(parents=True)
    (files / "model.bin").write_text(content)
    (files / "process-0" / "states.bin").write_text("states")
    checkpoints.seal(files, folder / f"checkpoint-{step}", RUN)
    checkpoints.clear(folder)
    return folder / f"checkpoint-{step}"


def names(folder):
    return [path.name for path in checkpoints_in(folder)]


def test_what_was_sealed_is_the_latest_and_usable(tmp_path):
    assert latest(tmp_path, RUN) is None
    write(tmp_path, 2)
    fourth = write(tmp_path, 4)
    assert latest(tmp_path, RUN) == fourth
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-4"]
    assert write(tmp_path, 4, "other weights") == latest(tmp_path, RUN)  # a step done again
    assert (fourth / "model.bin").read_text() == "other weights"


def test_checkpoints_are_in_the_order_of_their_steps_and_the_last_are_kept(tmp_path):
    for step in (9, 100, 10):
        write(tmp_path, step)
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-best" / checkpoints.MARKER).write_text("{}")
    assert names(tmp_path) == ["checkpoint-9", "checkpoint-10", "checkpoint-100"]
    for count, kept in ((5, 3), (2, 2), (0, 0)):
        checkpoints.keep_last(tmp_path, count)
        assert names(tmp_path) == ["checkpoint-9", "checkpoint-10", "checkpoint-100"][3 - kept :]
    assert (tmp_path / "checkpoint-best").exists()


def test_what_interrupted_runs_left_is_cleared_and_nothing_else(tmp_path):
    good, half = write(tmp_path, 2), write(tmp_path, 4)
    (half / checkpoints.MARKER).unlink()
    (checkpoints.begin(tmp_path) / "model.bin").write_text("half")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / ".training.json.1.tmp").write_text("half")
    (tmp_path / "checkpoint-notes").mkdir()
    assert names(tmp_path) == ["checkpoint-2"]
    checkpoints.clear(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-notes", "results"]
    assert not any((tmp_path / "results").iterdir())
    require_usable(good, RUN)


def test_a_place_to_write_to_is_empty_whatever_lay_there(tmp_path):
    (checkpoints.begin(tmp_path) / "model.bin").write_text("half")
    assert not any(checkpoints.begin(tmp_path).iterdir())


def test_a_checkpoint_half_removed_counts_as_not_there(tmp_path, monkeypatch):
    checkpoint = write(tmp_path, 2)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.remove(checkpoint)
    assert (checkpoint / "model.bin").exists() and names(tmp_path) == []


def test_damage_is_told_with_the_last_good_checkpoint_or_that_there_is_none(tmp_path):
    write(tmp_path, 1)
    first, second, third = (write(tmp_path, step) for step in (2, 4, 6))
    (third / "process-0" / "states.bin").write_text("stätes")
    (second / "model.bin").unlink()
    with pytest.raises(
        InputError, match=r"checkpoint-6 is damaged \(process-0/states.bin is not what was written\)"
    ) as e:
        latest(tmp_path, RUN)
    assert str(e.value).endswith(f"; delete it to resume from {first}, the last good one.")
    with pytest.raises(InputError, match=r"\(model.bin cannot be read: No such file"):
        require_usable(second, RUN)
    checkpoints.remove(tmp_path / "checkpoint-1")
    (first / checkpoints.MARKER).write_text(json.dumps({"identity": RUN}))
    with pytest.raises(InputError, match=r"not written to the end\); there is no good one beside it, so start afresh"):
        require_usable(first, RUN)


@pytest.mark.parametrize(
    "run, told",
    [
        ({**RUN, "seed": 1}, "its seed is 0, this run's 1;"),
        ({"seed": 0}, "its model is 'a1', this run's None;"),
        ({**RUN, "bf16": True}, "its bf16 is None, this run's True;"),
    ],
)
def test_a_checkpoint_of_another_run_is_told_by_what_differs(tmp_path, run, told):
    write(tmp_path, 2)
    with pytest.raises(InputError, match=f"belongs to another run: {told} resume with the same model"):
        latest(tmp_path, run)


@pytest.mark.parametrize(
    "error, reason",
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "the disk is full"),
        (RuntimeError("PytorchStreamWriter failed writing file"), "the disk is full"),
        (OSError(errno.EIO, os.strerror(errno.EIO)), "Input/output error"),
    ],
)
def test_a_disk_that_fails_is_one_sentence_with_the_way_on(tmp_path, error, reason):
    for kept in ("make room and start again", "make room and go on from checkpoint-2, the last good checkpoint"):
        with (
            pytest.raises(RunError, match=rf"^The log cannot be written to .* \({reason}\); {kept}"),
            checkpoints.writing("The log", tmp_path),
        ):
            raise error
        write(tmp_path, 2)


def test_an_error_that_is_not_the_disk_s_stays_what_it_is(tmp_path):
    with pytest.raises(RuntimeError, match=r"^shapes differ$"), checkpoints.writing("The log", tmp_path):
        raise RuntimeError("shapes differ")
