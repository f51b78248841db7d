"""The adapter against direct computations, and lm-eval's own generated tasks through it from end to end."""

import types

import numpy as np
import pytest
import torch

from lengthen.errors import InputError
from lengthen.models import wrap
from lengthen.streaming import evaluating
from tests.conftest import tiny_mamba2
from tests.models.family_properties import builder

pytest.importorskip("lm_eval", reason="lm-eval is an extra")

from lengthen.tasks.lm_eval_adapter import StateCarryingLM


def asked(*arguments):
    return [types.SimpleNamespace(args=a) for a in arguments]


@pytest.fixture(scope="module")
def model():
    return wrap(tiny_mamba2(vocab_size=512))


@pytest.fixture(scope="module")
def adapter(model, codecs):
    return StateCarryingLM(model, codecs["bpe"])


def _direct(model, ids, first):
    """(log-probability of ids[first:] after those before, whether it is greedy), in one call without a state."""
    with evaluating(model):
        logits = model(torch.from_numpy(ids)[None]).logits[0, :-1].double()
    target = torch.from_numpy(ids)[1:]
    chances = logits.log_softmax(-1).gather(-1, target[:, None])[:, 0]
    return float(chances[first - 1 :].sum()), bool((logits.argmax(-1) == target)[first - 1 :].all())


def test_loglikelihood_is_the_direct_one(adapter, model, codecs):
    """Contexts that share a beginning and answers of several lengths; spaces at a context's end go to the answer."""
    codec = codecs["bpe"]
    contexts = ["The king is dead. " * 20, "The king is dead. " * 20 + "Long live ", "", "Who is there?"]
    pairs = [(c, a) for c in contexts for a in ("the king", " nobody", "x")]
    for (context, answer), (found, greedy) in zip(pairs, adapter.loglikelihood(asked(*pairs))):
        whole = np.concatenate([codec.before, codec.encode(context + answer)])
        first = len(codec.before) + len(codec.encode(context.rstrip()))
        expected = _direct(model, whole, first)
        assert found == pytest.approx(expected[0], rel=1e-5) and greedy == expected[1]  # float32 logits
    assert adapter.cost.processed < adapter.cost.tokens / 3


def test_a_greedy_answer_is_known_as_such(adapter, codecs):
    (said,) = adapter.generate_until(asked(("Who is there? Nay, answer me", {"until": [], "max_gen_toks": 1})))
    ((_, greedy),) = adapter.loglikelihood(asked(("Who is there? Nay, answer me", said)))
    assert greedy or codecs["bpe"].encode(said).size != 1  # a token's text alone may have other ids


def test_rolling_rolls_the_state(adapter, model, codecs):
    """A text of several segments is one pass from BOS, however long: not pieces that start again."""
    codec, text = codecs["bpe"], "Now is the winter of our discontent. " * 400
    ids = np.concatenate([codec.before, codec.encode(text)])
    assert len(ids) > 4096
    (found,) = adapter.loglikelihood_rolling(asked((text,)))
    assert found == pytest.approx(_direct(model, ids, 1)[0], rel=1e-5)
    assert adapter.loglikelihood_rolling(asked(("",))) == [0.0]


@pytest.mark.parametrize(
    "make", [lambda: tiny_mamba2(vocab_size=512), builder("Bamba", {"vocab_size": 512})], ids=["mamba2", "bamba"]
)
def test_greedy_continuation_is_that_of_generate(make, codecs):
    """Token by token, for contexts that share a beginning, over more tokens than are generated at a time."""
    own, codec = wrap(make()), codecs["bpe"]
    contexts = ["Enter the ghost. " * 9, "Enter the ghost. " * 9 + "Exit", "Who?"]
    found = StateCarryingLM(own, codec).generate_until(asked(*((c, {"max_gen_toks": 40}) for c in contexts)))
    library = make()
    for context, said in zip(contexts, found):
        ids = torch.from_numpy(np.concatenate([codec.before, codec.encode(context)]))[None]
        made = library.generate(ids, max_new_tokens=40, do_sample=False, eos_token_id=codec.end, pad_token_id=0)
        ended = made[0, ids.shape[1] :].tolist()
        assert said == codec.decode(ended[: ended.index(codec.end)] if codec.end in ended else ended)


def test_generation_ends_where_a_task_says(adapter):
    context = "The ghost of the king"
    (whole,) = adapter.generate_until(asked((context, {"max_gen_toks": 60})))
    stop = whole[25:27]
    (cut,) = adapter.generate_until(asked((context, {"max_gen_toks": 60, "until": [stop, "never"]})))
    assert cut == whole[: whole.index(stop)]
    with pytest.raises(InputError, match="drawn at random"):
        adapter.generate_until(asked((context, {"do_sample": True, "temperature": 0.7})))


def test_a_prompt_of_eight_thousand_tokens_is_not_truncated(codecs):
    """What stands first is read, in a model that forgets slowly: another first word makes another answer's chance."""
    slow, codec = wrap(tiny_mamba2(vocab_size=512)), codecs["bpe"]
    with torch.no_grad():
        for name, weight in slow.named_parameters():
            if name.endswith("A_log"):
                weight.fill_(-12.0)
    adapter, rest = StateCarryingLM(slow, codec), " so it goes on and on" * 1400
    found = adapter.loglikelihood(asked(("Hamlet" + rest, " end"), ("Othello" + rest, " end")))
    assert adapter.cost.processed >= 2 * 8192
    whole = np.concatenate([codec.before, codec.encode("Hamlet" + rest + " end")])
    expected = _direct(slow, whole, len(codec.before) + len(codec.encode("Hamlet" + rest)))
    assert found[0][0] == pytest.approx(expected[0], rel=1e-5)
    assert abs(found[0][0] - found[1][0]) > 1e-3  # and the tolerance above is a tenth of this
