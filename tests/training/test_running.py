"""A run from its options to its folder: windows that suit the intervention, a library's model, refusals."""

import copy
import dataclasses
import json
import logging
import math
import tempfile

import numpy as np
import pytest
import torch
from transformers import Mamba2ForCausalLM

from lengthen import TBPTT, Mixture, StatePassing, Zero, post_train
from lengthen.data import LaneWindows, ShuffledWindows, load_corpus
from lengthen.errors import InputError
from lengthen.models import is_wrapped
from lengthen.models.agreement import relative_error
from lengthen.reporting.numbers import NONE
from lengthen.reporting.tabulation import table
from lengthen.training import Mamba2Recipe, Optimisation, pretrain, run_training
from lengthen.training.running import wants_lanes, windows_for
from tests.conftest import tiny_mamba2
from tests.training.small_runs import FAST, learning_rates, weights


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


def test_the_record_tells_how_many_times_the_text_was_read():
    text = np.arange(129) % 256  # 128 positions have a target
    record = post_train(tiny_mamba2(), [text], train_context=32, rows=8, steps=3, intervention="zero")
    assert record.passes == 3 * 8 * 32 / 128 and table(record).rows[0][4] == "6.0 times"
    assert table(dataclasses.replace(record, passes=math.nan)).rows[0][4] == NONE


def test_a_run_repeats_itself(plays):
    models = [tiny_mamba2(), tiny_mamba2()]
    one, two = (post_train(m, plays[0], intervention="state-passing", seed=3, **FAST) for m in models)
    assert one.losses == two.losses and torch.equal(weights(models[0]), weights(models[1]))
    assert post_train(tiny_mamba2(), plays[0], intervention="state-passing", seed=4, **FAST).losses != one.losses


@pytest.mark.parametrize(
    "options, match",
    [
        ({"steps": 0}, "steps is 0"),
        ({"train_context": 0}, "at least 1 position"),
        ({"rows": 0}, "at least 1 row"),
        ({"rows": 6, "accumulation": 4}, "micro-batches"),
        ({"accumulation": 0}, "micro-batches is 0"),
        ({"steps": 4, "warmup": 5}, "takes 5 of 4 steps; give 0 to 4"),
        ({"warmup": -1}, "takes -1 of"),
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


def test_windows_come_in_lanes_where_documents_go_on_and_shuffled_elsewhere(plays):
    inner = Mixture([(Zero(), 0.5), (TBPTT(), 0.5)])
    cases = [(TBPTT(), True), (inner, True), (Mixture([(inner, 0.5), (Zero(), 0.5)]), True), (StatePassing(), False)]
    for intervention, lanes in cases:
        windows = windows_for(plays[0], intervention, context=32, lanes=8, seed=3)
        assert wants_lanes(intervention) == lanes and type(windows) is (LaneWindows if lanes else ShuffledWindows)
        assert (windows.context, windows.lanes, windows.seed) == (32, 8, 3)


def test_a_few_long_documents_are_cut_so_that_every_lane_has_a_section():
    corpus = load_corpus([np.arange(801)])
    windows = windows_for(corpus, TBPTT(), context=20, lanes=4, seed=0)
    assert windows.corpus.inputs.tolist() == [200, 200, 200, 197]  # a prediction is lost at each cut
    starts = [next(windows)["start"].tolist() for _ in range(10)]
    assert starts == [[True] * 4] + [[False] * 4] * 9
    enough = load_corpus([np.arange(50)] * 4)
    assert windows_for(enough, TBPTT(), context=20, lanes=4, seed=0).corpus is enough


def test_the_rate_rises_over_the_warm_up_and_ends_at_its_share_of_the_peak(tmp_path, plays):
    how = Optimisation(6, 4, learning_rate=1e-2, warmup=2, final_share=0.25, config={"logging_steps": 1})
    run_training(tiny_mamba2(), plays[0], Zero(), how, train_context=8, out=tmp_path)
    rates = learning_rates(tmp_path)
    share = [0.25 + 0.75 * (1 + np.cos(np.pi * t)) / 2 for t in (0, 0.25, 0.5, 0.75)]  # of the way after the warm-up
    assert list(rates) == [1, 2, 3, 4, 5, 6]
    assert list(rates.values()) == pytest.approx([0, 5e-3, *(1e-2 * s for s in share)])


def test_a_run_without_a_folder_leaves_no_file(tmp_path, plays, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    how, quiet = Optimisation(1, 4), logging.getLogger("transformers.trainer").level
    record = run_training(tiny_mamba2(), plays[0], Zero(), how, train_context=8)
    assert record.out == "" and len(record.losses) == 1 and not any(tmp_path.iterdir())
    with pytest.raises(InputError):
        run_training(tiny_mamba2(), plays[0], Zero(), Optimisation(1, 4, config={"lost": 1}), train_context=8)
    assert not any(tmp_path.iterdir()) and logging.getLogger("transformers.trainer").level == quiet


def test_the_record_says_how_the_run_was_made(tmp_path, plays):
    how = Optimisation(2, 4, config={"logging_steps": 1})
    record = run_training(tiny_mamba2(), plays[0], TBPTT(), how, train_context=8, seed=5, out=tmp_path, name="tiny")
    assert (record.model, record.steps, record.rows, record.train_context, record.seed) == ("tiny", 2, 4, 8, 5)
    assert record.configuration["intervention"] == TBPTT().describe()
    assert record.configuration["data"] == plays[0].fingerprint and record.configuration["config"] == how.config


def test_a_folder_s_tokenizer_goes_beside_the_model_and_bytes_have_none(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0, "to": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(tmp_path / "words")
    (tmp_path / "text.txt").write_text("to to to to to " * 40)
    tiny = Mamba2Recipe(width=16, layers=1, head_dim=8, state_size=4)
    for tokenizer, saved in (("bytes", False), (tmp_path / "words", True), (None, False)):
        options = {"train_context": 8, "steps": 1, "rows": 4, "tokenizer": tokenizer}
        post_train(tiny_mamba2(), tmp_path / "text.txt", out=tmp_path / "post", **options)
        pretrain(
            tmp_path / "text.txt", recipe=tiny, out=tmp_path / "pre", **(options | {"tokenizer": tokenizer or "bytes"})
        )
        for run in ("post", "pre"):
            assert (tmp_path / run / "model" / "tokenizer.json").exists() == saved
            assert (tmp_path / run / "model" / "model.safetensors").exists()
