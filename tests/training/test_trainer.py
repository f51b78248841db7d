"""Training steps: initial states reach the model, lanes and steps line up, what is no number or not wrapped ends it."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import TrainingArguments

from lengthen import TBPTT, FittedNoise, Mixture, RandomNoise, StatePassing, Zero, post_train, wrap, zero_state
from lengthen.data import LaneWindows, ShuffledWindows, load_corpus
from lengthen.errors import InputError, RunError
from lengthen.interventions import Intervention, Rows
from lengthen.models import unwrap
from lengthen.models.agreement import relative_error
from lengthen.training import StateTrainer
from lengthen.training.trainer import MetricsFile, StepProgress
from tests.conftest import tiny_mamba2
from tests.training.small_runs import FAST, weights
from tests.training_free.small_models import small_model


def by_hand(corpus, intervention, lanes=False):
    """The same four steps in a plain loop."""
    model = wrap(tiny_mamba2()).train()
    decayed = [p for n, p in model.named_parameters() if p.dim() > 1 and "norm" not in n]
    rest = [p for p in model.parameters() if not any(p is q for q in decayed)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    windows = (LaneWindows if lanes else ShuffledWindows)(corpus, context=32, lanes=8, seed=0)
    losses = []
    for step in range(4):
        batch = next(windows)
        rows = Rows.of(batch, step, shuffled=not lanes)
        state = intervention.initial_state(rows, zero_state(model, 8))
        output = model(
            batch["input_ids"],
            shift_labels=batch["labels"],
            attention_mask=batch.get("attention_mask"),
            initial_state=state,
        )
        output.loss.backward()
        intervention.observe(rows, output.final_state.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(output.loss.item())
    return model, losses


@pytest.mark.parametrize(
    "make",
    [Zero, StatePassing, FittedNoise, lambda: RandomNoise(0.5), TBPTT],
    ids=["zero", "sp", "fitted", "random", "tbptt"],
)
def test_equals_a_plain_loop(plays, make):
    model = tiny_mamba2()
    record = post_train(model, plays[0], intervention=make(), **FAST)
    expected, losses = by_hand(plays[0], make(), lanes=make is TBPTT)
    assert record.losses == pytest.approx(losses, rel=1e-5)
    assert relative_error(weights(model), weights(expected)) < 1e-5


def test_interventions_change_what_is_learnt(plays):
    ends = {}
    for make in (Zero, StatePassing, FittedNoise, lambda: RandomNoise(0.5), TBPTT):
        model = tiny_mamba2()
        record = post_train(model, plays[0], intervention=make(), **FAST)
        ends[record.intervention] = weights(model)
    names = list(ends)
    assert all(relative_error(ends[a], ends[b]) > 1e-4 for i, a in enumerate(names) for b in names[:i])


@pytest.mark.parametrize(
    "make",
    [
        StatePassing,
        FittedNoise,
        lambda: RandomNoise(0.5),
        TBPTT,
        lambda: Mixture([(StatePassing(zero_fraction=0), 0.5), (Zero(), 0.5)]),
    ],
)
def test_micro_batches_change_nothing(plays, make):
    models = [tiny_mamba2(), tiny_mamba2()]
    records = [post_train(m, plays[0], intervention=make(), accumulation=a, **FAST) for m, a in zip(models, (1, 4))]
    assert records[1].losses == pytest.approx(records[0].losses, rel=1e-5)
    assert relative_error(weights(models[1]), weights(models[0])) < 1e-4


def test_gradient_checkpointing_changes_nothing(plays):
    models = [tiny_mamba2(), tiny_mamba2()]
    for model, config in zip(models, ({}, {"gradient_checkpointing": True})):
        post_train(model, plays[0], intervention=StatePassing(), config=config, **FAST)
    assert relative_error(weights(models[1]), weights(models[0])) < 1e-6


def test_bf16_autocast_keeps_the_state_in_float32(plays):
    seen = []

    class Watching(StatePassing):
        def observe(self, rows, final_state):
            seen.extend(t.dtype for named in final_state.tensors.values() for t in named.values())
            super().observe(rows, final_state)

    record = post_train(tiny_mamba2(), plays[0], intervention=Watching(), config={"bf16": True}, **FAST)
    assert set(seen) == {torch.float32}
    plain = post_train(tiny_mamba2(), plays[0], intervention=StatePassing(), **FAST)
    assert record.losses == pytest.approx(plain.losses, rel=2e-2) and record.losses != plain.losses


def test_every_window_is_given_once_and_steps_count_optimiser_steps(plays):
    class Counting(Intervention):
        name = "counting"
        given, seen = [], []

        def initial_state(self, rows, zero):
            self.given.append((rows.step, rows.lane.tolist(), rows.lanes, rows.shuffled))

        def observe(self, rows, final_state):
            assert all(t.grad_fn is None for named in final_state.tensors.values() for t in named.values())
            self.seen.append((rows.step, rows.lane.tolist(), rows.lanes, rows.shuffled))

    post_train(tiny_mamba2(), plays[0], intervention=Counting(), accumulation=2, **FAST)
    expected = [(step, lanes, 8, True) for step in range(4) for lanes in ([0, 1, 2, 3], [4, 5, 6, 7])]
    assert Counting.given == expected == Counting.seen


def test_a_loss_that_is_not_finite_ends_the_run(plays):
    model = tiny_mamba2()
    with torch.no_grad():
        model.backbone.layers[0].mixer.D.fill_(float("nan"))
    with pytest.raises(RunError, match="step 0"):
        post_train(model, plays[0], intervention="zero", **FAST)


def test_a_model_that_lost_its_wrapping_is_not_saved(plays, tmp_path):
    class Unwrapping(Zero):
        def observe(self, rows, final_state):
            self.seen = getattr(self, "seen", 0) + 1
            if self.seen == FAST["steps"]:
                unwrap(model)

    model = tiny_mamba2()
    with pytest.raises(InputError, match="not wrapped"):
        post_train(model, plays[0], intervention=Unwrapping(), out=tmp_path, **FAST)
    assert not (tmp_path / "model").exists()


def test_micro_batches_of_unequal_token_counts_change_nothing():
    generator = np.random.default_rng(0)
    texts = [generator.integers(0, 256, n) for n in (40, 900, 70, 1000, 90, 33, 700, 64, 66, 800)]
    models = [tiny_mamba2(), tiny_mamba2()]
    corpus = load_corpus(texts, vocabulary_size=256)
    records = [
        post_train(m, corpus, intervention=TBPTT(), accumulation=a, config={"optim": "sgd"}, **FAST)
        for m, a in zip(models, (1, 4))
    ]
    assert records[1].losses == pytest.approx(records[0].losses, rel=1e-5)
    start = weights(tiny_mamba2())
    assert (
        relative_error(weights(models[1]) - start, weights(models[0]) - start) < 1e-3
    )  # float32 rounding of small steps


def trainer_of(model, folder, corpus, **options):
    windows = ShuffledWindows(corpus, context=16, lanes=6)
    arguments = TrainingArguments(str(folder), max_steps=1, use_cpu=True, report_to="none", **options)
    return StateTrainer(model, windows, Zero(), arguments)


def test_rows_that_make_no_equal_micro_batches_are_refused(tmp_path, plays):
    with pytest.raises(InputError, match=r"6 rows of a process cannot be cut into 4 equal micro-batches; choose rows"):
        trainer_of(tiny_mamba2(), tmp_path, plays[0], gradient_accumulation_steps=4)


def test_weight_decay_is_for_matrices_and_not_for_the_recurrence(tmp_path, plays):
    """Of Mamba-1, whose A is a matrix too."""
    model = small_model("Mamba")
    names = trainer_of(model, tmp_path, plays[0]).get_decay_parameter_names(model)
    first = {name.removeprefix("backbone.layers.0.mixer.") for name in names if ".layers.1." not in name}
    projections = {f"{name}.weight" for name in ("in_proj", "x_proj", "dt_proj", "out_proj", "conv1d")}
    assert first == projections | {"backbone.embeddings.weight"}


@pytest.mark.parametrize("name", ["RWKV6", "RWKV7", "HGRN", "Rwkv"])
def test_no_parameter_of_a_recurrence_that_is_no_projection_decays(tmp_path, plays, name):
    """Bonuses, token shifts and lower bounds have two axes and more, yet are vectors to each head or channel."""
    model = small_model(name)
    names = trainer_of(model, tmp_path, plays[0]).get_decay_parameter_names(model)
    projections = (torch.nn.Linear, torch.nn.Embedding, torch.nn.Conv1d)
    owners = [model.get_submodule(name.rpartition(".")[0]) for name in names]
    assert names and all(isinstance(owner, projections) for owner in owners)
    assert sum(isinstance(owner, torch.nn.Linear) for owner in owners) > 10


@torch.no_grad()
def test_an_evaluation_starts_from_zero_and_shifts_labels_where_they_are_not(tmp_path, plays):
    model = tiny_mamba2()
    trainer = trainer_of(model, tmp_path, plays[0])
    trainer.intervention = None  # an evaluation has no need of it
    batch = next(ShuffledWindows(plays[0], context=16, lanes=6))
    shifted = trainer.compute_loss(model, {**batch, "shift_labels": batch["labels"]})
    ids = torch.cat([batch["input_ids"], batch["labels"][:, -1:]], 1)
    assert float(trainer.compute_loss(model, {"input_ids": ids, "labels": ids})) == pytest.approx(float(shifted))
    logits = unwrap(model)(batch["input_ids"]).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    assert float(shifted) == pytest.approx(float(expected))


def test_the_metrics_file_is_cut_back_to_where_a_run_goes_on(tmp_path):
    path, first = tmp_path / "metrics.jsonl", SimpleNamespace(is_world_process_zero=True, global_step=4, log_history=[])
    log = MetricsFile(path)
    first.log_history = [{"loss": 2.0, "step": 2}]
    path.write_text("what an interrupted run wrote after its checkpoint\n")
    log.on_train_begin(None, first, None)
    log.on_log(None, first, None, logs={"loss": 1.5})
    log.on_log(None, first, None, logs={})
    other = SimpleNamespace(is_world_process_zero=False, global_step=4, log_history=[])
    log.on_train_begin(None, other, None)
    log.on_log(None, other, None, logs={"loss": math.pi})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 2, "loss": 2.0},
        {"step": 4, "loss": 1.5},
    ]


def test_progress_is_told_after_every_step():
    told = []
    for step in (1, 2):
        StepProgress(lambda *counts: told.append(counts)).on_step_end(
            None, SimpleNamespace(global_step=step, max_steps=2), None
        )
    assert told == [(1, 2), (2, 2)]
