"""A watched run logs what probes find where it is told to, ends when it is repaired, and resumes as it was."""

import json

import pytest
import torch

from lengthen import StatePassing, post_train, stream, wrap
from lengthen.data import HeldOutSequences
from lengthen.errors import InputError
from lengthen.streaming import reset_losses
from lengthen.training import Optimisation, StreamedLoss, Watch, run_training
from tests.conftest import plain_transformers, tiny_mamba2
from tests.training.matrix_cases import model
from tests.training.test_resuming import assert_same, remains, stop_after

RUN = {"train_context": 16, "steps": 6, "rows": 8, "learning_rate": 1e-2}


def test_the_probe_s_numbers_are_the_stream_s(plays):
    wrapped = wrap(model())
    found = StreamedLoss(plays[1], 16)(wrapped)
    tokens = HeldOutSequences(plays[1], length=256, count=4)
    losses = torch.cat([segment.losses for segment in stream(wrapped, tokens)], dim=1)
    assert found["in_context_loss"] == pytest.approx(float(losses[:, :16].mean()), rel=1e-6)
    assert found["far_loss"] == pytest.approx(float(losses[:, 128:].mean()), rel=1e-6)
    resets = torch.cat([part for _, part in reset_losses(wrapped, tokens, 16)], dim=1)
    assert StreamedLoss(plays[1], 16).reset_loss(wrapped) == pytest.approx(float(resets[:, 128:].mean()), rel=1e-6)
    assert found["far_state"] > found["in_context_state"] > 0  # decays are slow: the state still grows


def test_what_is_found_is_logged_and_changes_nothing(tmp_path, plays):
    watched = post_train(model(), plays[0], out=tmp_path / "run", watch=plays[1], watch_steps=2, **RUN)
    assert watched.losses == post_train(model(), plays[0], **RUN).losses
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    names = {"in_context_loss", "far_loss", "in_context_state", "far_state"}
    assert [line["step"] for line in lines if names <= line.keys()] == [2, 4, 6]
    last = StreamedLoss(plays[1], 16)(wrap(trained(tmp_path / "run" / "model")))
    found = next(line for line in reversed(lines) if "far_loss" in line)
    assert found["far_loss"] == pytest.approx(last["far_loss"], rel=1e-6)


def trained(folder):
    return plain_transformers(folder)


def test_tensorboard_gets_it_too(tmp_path, plays):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = {"report_to": "tensorboard", "logging_steps": 1}
    record = post_train(model(), plays[0], out=tmp_path, watch=plays[1], watch_steps=3, config=config, **RUN)
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("train/far_loss")] == [3, 6]
    assert [event.value for event in board.Scalars("train/loss")] == pytest.approx(record.losses, rel=1e-5)


def test_a_resumed_run_s_curves_are_those_of_one_run(tmp_path, plays):
    """Stopped by a probe in step 6: the point of step 5 lies behind the checkpoint."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Stopped(Exception):
        pass

    def probe(_):
        raise Stopped

    def run(watch=None, resume=False):
        how = Optimisation(6, 8, 1e-2, config={"report_to": "tensorboard", "logging_steps": 1}, save_steps=4)
        return run_training(
            model(), plays[0], StatePassing(), how, train_context=16, out=tmp_path, watch=watch, resume=resume
        )

    with pytest.raises(Stopped):
        run(Watch([probe], steps=6))
    losses = run(resume=True).losses
    (folder,) = {path.parent for path in tmp_path.rglob("events.out.tfevents*")}
    assert len(list(folder.iterdir())) == 2
    points = EventAccumulator(str(folder)).Reload().Scalars("train/loss")
    assert [point.step for point in points] == [1, 2, 3, 4, 5, 6]
    assert [point.value for point in points] == pytest.approx(losses, rel=1e-5)


def test_auto_ends_where_the_far_loss_is_repaired_and_stays_ended(tmp_path, plays):
    options = {**RUN, "steps": "auto", "watch": plays[1], "watch_steps": 3}
    record = post_train(model(), plays[0], out=tmp_path, save_steps=50, **options)
    reset = StreamedLoss(plays[1], 16).reset_loss(wrap(model()))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    far = [line["far_loss"] for line in lines if "far_loss" in line]
    assert far[-1] <= reset < min(far[:-1], default=float("inf"))
    assert record.steps == len(record.losses) == 3 * len(far) < 2000
    again = post_train(model(), plays[0], out=tmp_path, save_steps=50, resume=True, **options)
    assert again.losses == record.losses


def test_a_watched_run_resumes_exactly(tmp_path, plays):
    def run(out, **more):
        options = {**RUN, "watch": plays[1], "watch_steps": 2, "save_steps": 3}
        return post_train(tiny_mamba2(), plays[0], intervention=StatePassing(), out=out, **options, **more)

    run(tmp_path / "whole")
    stop_after(3, lambda: run(tmp_path / "parts"))
    run(tmp_path / "parts", resume=True)
    assert_same(remains(tmp_path / "parts"), remains(tmp_path / "whole"))


def test_bad_input(plays):
    with pytest.raises(InputError, match="name one to watch"):
        post_train(model(), plays[0], **{**RUN, "steps": "auto"})
    with pytest.raises(InputError, match="two looks at the model are 0"):
        post_train(model(), plays[0], watch=plays[1], watch_steps=0, **RUN)
