"""Post-training: its learning rate, the draws of its seed, the tokenizer beside the model."""

import functools

import pytest

from lengthen import RandomNoise, post_train
from lengthen.interventions import intervention_named
from lengthen.models import tokenizer_for
from tests.conftest import tiny_mamba2
from tests.training.matrix_cases import model
from tests.training.small_runs import FAST, learning_rates


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


def test_the_rate_falls_to_zero_and_stays_where_the_end_is_not_known(tmp_path, plays, monkeypatch):
    options = {"train_context": 16, "rows": 8, "learning_rate": 1e-2, "config": {"logging_steps": 1}}
    post_train(tiny_mamba2(), plays[0], steps=4, out=tmp_path / "four", **options)
    falling = list(learning_rates(tmp_path / "four").values())
    assert falling == pytest.approx([1e-2 * share for share in (1, 0.853553, 0.5, 0.146447)], rel=1e-4)
    monkeypatch.setattr("lengthen.training.post_training.AUTO_STEPS", 4)
    watched = {"watch": plays[1], "watch_steps": 2}
    record = post_train(model(), plays[0], steps="auto", out=tmp_path / "auto", **watched, **options)
    assert list(learning_rates(tmp_path / "auto").values()) == pytest.approx([1e-2] * record.steps)
