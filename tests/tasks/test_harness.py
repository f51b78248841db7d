"""lm-eval's tasks by name: run from end to end, and what they lack told in a sentence."""

import sys
from importlib.util import find_spec

import pytest
from transformers import AutoTokenizer

from lengthen.errors import InputError
from lengthen.models import wrap
from lengthen.tasks import evaluate, harness
from lengthen.tasks import evaluating as evaluating_module
from lengthen.tasks.harness import task_folder, tokenizer_on_disk
from tests.conftest import tiny_mamba2
from tests.tasks.tokenizers_in_tests import trained

with_lm_eval = pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-eval is an extra")


@pytest.fixture(scope="module")
def model():
    return wrap(tiny_mamba2(vocab_size=512))


@with_lm_eval
def test_prompts_are_measured_with_the_model_s_tokenizer(codecs, tmp_path):
    """Also where that is bytes, or an object that lies nowhere."""
    from lm_eval.tasks.ruler.common_utils import get_tokenizer

    text = "Où est Anna? 12345\n\n  Là."
    for given, count in (
        ("bytes", len(text.encode())),
        (codecs["bpe"]._tokenizer, 1 + len(codecs["bpe"].encode(text))),
    ):
        place = tokenizer_on_disk(given, str(tmp_path / str(count)))
        assert len(get_tokenizer(tokenizer=place)(text).input_ids) == count


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    trained("bpe").save_pretrained(folder)
    return str(folder)


@with_lm_eval
@pytest.mark.acceptance
@pytest.mark.parametrize("task", ["niah_single_1", "niah_multikey_2", "ruler_fwe"])
def test_generated_tasks_run_from_end_to_end(model, tokenizer, monkeypatch, capfd, task):
    """Without a network: what NLTK would download is not asked for. Nothing is written on the way."""
    pytest.importorskip("wonderwords", reason="RULER's tasks need lm-eval's extra of that name")
    pytest.importorskip("scipy", reason="RULER's tasks need lm-eval's extra of that name")
    nltk = pytest.importorskip("nltk", reason="RULER's tasks need lm-eval's extra of that name")
    monkeypatch.setattr(nltk, "download", lambda *_, **__: pytest.fail("NLTK was to download something"))
    (cell,) = evaluate(model, [f"lm-eval:{task}"], lengths=[4096], n=2, tokenizer=tokenizer).cells
    assert (cell.task, cell.length, cell.n) == (f"lm-eval:{task}", 4096, 2)
    assert 0 <= cell.accuracy <= 1 and cell.scoring == "lm-eval's 4096"
    assert 3000 < cell.tokens <= 4096
    assert capfd.readouterr() == ("", "")


@with_lm_eval
@pytest.mark.parametrize(
    "task, sentence",
    [
        ("niah_singel_1", r"lm-eval has no task 'niah_singel_1'; did you mean niah_single_1 or niah_single_"),
        ("ruler", "ruler is a group of lm-eval's tasks; name its tasks one by one"),
    ],
)
def test_an_unknown_task_is_a_sentence_before_any_work(model, tokenizer, monkeypatch, task, sentence):
    monkeypatch.setattr(evaluating_module, "_cells", lambda *_: pytest.fail("a cell was run"))
    with pytest.raises(InputError, match=sentence):
        evaluate(model, ["copying", f"lm-eval:{task}"], lengths=[4096], n=1, tokenizer=tokenizer)


def _without_punkt(*_, **__):
    raise LookupError("\n***\n  Resource punkt_tab not found.\n  Please use the NLTK Downloader ...")


def _broken(*_, **__):
    raise ValueError("The data\nset is gone.")


@with_lm_eval
@pytest.mark.parametrize(
    "runs, sentence",
    [
        (_without_punkt, r"with NLTK's punkt_tab, which is not here; run `python -m nltk.downloader punkt_tab` once"),
        (_broken, r"task niah_single_2 cannot be run \(ValueError: The data set is gone\)\.$"),
    ],
)
def test_what_a_task_lacks_is_a_sentence(model, tokenizer, monkeypatch, runs, sentence):
    monkeypatch.setattr("lm_eval.simple_evaluate", runs)
    with pytest.raises(InputError, match=sentence):
        evaluate(model, ["lm-eval:niah_single_2"], lengths=[4096], n=1, tokenizer=tokenizer)


def test_without_lm_eval_its_tasks_are_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    monkeypatch.setattr(harness, "_folders", harness._folders.__wrapped__)
    with pytest.raises(InputError, match=r"^lm-eval cannot be used \(.*\); install lengthen\[lm-eval\]\.$"):
        task_folder("lm-eval:niah_single_1")


@pytest.mark.parametrize("given", [None, "bytes"])
def test_a_tokenizer_of_bytes_is_written_with_an_id_for_each(tmp_path, given):
    text = "Où est Anna? 12345\n\n  Là."
    written = AutoTokenizer.from_pretrained(tokenizer_on_disk(given, str(tmp_path)))
    assert len(written(text).input_ids) == len(text.encode()) and len(written) == 256


def test_a_tokenizer_that_lies_somewhere_stays_there(tmp_path):
    assert tokenizer_on_disk("owner/name", str(tmp_path)) == "owner/name"
    assert tokenizer_on_disk(tmp_path / "own", str(tmp_path)) == str(tmp_path / "own")
    assert not any(tmp_path.iterdir())
