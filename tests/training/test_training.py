"""Post-training: initial states reach the model, lanes and steps line up, what is saved is the library's own."""

import copy
import functools
import json

import numpy as np
import pytest
import torch
from transformers import Mamba2ForCausalLM

from lengthen import (
    TBPTT,
    FittedNoise,
    Mixture,
    RandomNoise,
    StatePassing,
    Zero,
    post_train,
    pretrain,
    wrap,
    zero_state,
)
from lengthen.data import LaneWindows, ShuffledWindows, load_corpus
from lengthen.errors import InputError, RunError
from lengthen.interventions import Intervention, Rows, intervention_named
from lengthen.models import is_wrapped, tokenizer_for, unwrap
from lengthen.models.agreement import relative_error
from lengthen.training import Mamba2Recipe
from tests.conftest import tiny_mamba2

FAST = {"train_context": 32, "steps": 4, "rows": 8, "learning_rate": 1e-2}


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


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


@pytest.mark.parametrize("name", ["state-passing", "tbptt", "fitted-noise", "zero"])
def test_the_saved_model_is_the_library_s(tmp_path, plays, name):
    model = tiny_mamba2(n_groups=2)
    before = copy.deepcopy(model.state_dict())
    record = post_train(model, plays[0], intervention=name, out=tmp_path, **FAST)
    plain = Mamba2ForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert not is_wrapped(plain) and set(plain.state_dict()) == set(before)
    ids = torch.randint(256, (2, 50))
    with torch.no_grad():
        assert relative_error(plain(ids).logits, model.eval()(ids).logits) < 1e-5
    assert any(not torch.equal(plain.state_dict()[n], t) for n, t in before.items())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 4 and len(record.losses) == 4
    assert json.loads((tmp_path / "results" / "training.json").read_text())["intervention"] == name


def test_a_run_repeats_itself(plays):
    models = [tiny_mamba2(), tiny_mamba2()]
    one, two = (post_train(m, plays[0], intervention="state-passing", seed=3, **FAST) for m in models)
    assert one.losses == two.losses and torch.equal(weights(models[0]), weights(models[1]))
    assert post_train(tiny_mamba2(), plays[0], intervention="state-passing", seed=4, **FAST).losses != one.losses


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


@pytest.mark.parametrize(
    "options, match",
    [
        ({"steps": 0}, "steps is 0"),
        ({"train_context": 0}, "at least 1 position"),
        ({"rows": 0}, "at least 1 lane"),
        ({"rows": 6, "accumulation": 4}, "micro-batches"),
        ({"accumulation": 0}, "micro-batches is 0"),
        ({"learning_rate": -1.0}, "learning rate is -1"),
        ({"learning_rate": float("nan")}, "learning rate is nan"),
        ({"rows": 2, "intervention": "state-passing"}, "at least 4 rows"),
        ({"config": {"no_such_option": 1}}, "TrainingArguments"),
        ({"config": {"max_steps": 7}}, "max_steps cannot be set"),
        ({"train_context": 10**7}, "longest document"),
    ],
)
def test_bad_input(plays, options, match):
    with pytest.raises(InputError, match=match):
        post_train(tiny_mamba2(), plays[0], **{**FAST, "intervention": "zero", **options})


def test_pretraining_from_a_recipe(plays):
    recipe = Mamba2Recipe(width=32, layers=1, head_dim=16, state_size=8, decay_range=(0.5, 0.5))
    _model, record = pretrain(plays[0], train_context=32, steps=60, rows=8, recipe=recipe, warmup=6)
    assert record.losses[-1] < record.losses[0] - 1
    fresh = recipe.build()
    assert torch.allclose(fresh.backbone.layers[0].mixer.A_log.exp(), torch.tensor(0.5))
    assert torch.equal(weights(recipe.build(1)), weights(recipe.build(1))) and not torch.equal(
        weights(fresh), weights(recipe.build(1))
    )
    with pytest.raises(InputError, match="decay range"):
        Mamba2Recipe(decay_range=(2.0, 1.0)).build()
    with pytest.raises(InputError, match="heads"):
        Mamba2Recipe(width=30).build()


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


def test_the_tokenizer_goes_where_the_model_goes(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0, "to": 1, "be": 2, "or": 3, "not": 4}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tiny_mamba2().save_pretrained(tmp_path / "model")
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("to be or not to be " * 200)
    post_train(tmp_path / "model", tmp_path / "text.txt", out=tmp_path / "run", **FAST)
    assert tokenizer_for(tmp_path / "run" / "model") != "bytes"
    assert AutoTokenizer.from_pretrained(tmp_path / "run" / "model")("be not")["input_ids"] == [2, 4]


def test_the_seed_decides_an_intervention_s_draws(plays):
    draws = {seed: intervention_named("fitted-noise", seed).seed for seed in (0, 3)}
    assert draws == {0: 0, 3: 3} and intervention_named("fitted-noise:seed=5", 3).seed == 5

    made = []

    class Watching(RandomNoise):
        @functools.wraps(RandomNoise.__init__)
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self.seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lengthen.interventions.names.RandomNoise", Watching)
        post_train(tiny_mamba2(), plays[0], intervention="random-noise:std=1", seed=7, **FAST)
    assert made == [7]
