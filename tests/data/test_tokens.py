"""Tokenizers: ids as the tokenizer itself gives them, for documents of any length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, PythonBackend

from lengthen.data import bundled_plays, load_corpus
from lengthen.data.tokens import AGREEING_TOKENS, TokenizerEncoder, _agreement, make_encoder
from lengthen.errors import InputError
from tests.conftest import tiny_mamba2


@pytest.fixture(scope="module")
def text() -> str:
    return bundled_plays()[1][0].text


@pytest.fixture(scope="module", params=["byte-level", "metaspace"])
def tokenizer(request: pytest.FixtureRequest, text: str) -> PreTrainedTokenizerFast:
    """Small BPE tokenizers of both common kinds, which put a BOS before and an EOS after a text."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    if request.param == "byte-level":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        backend.normalizer = normalizers.NFKC()
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["<s>", "</s>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=specials, initial_alphabet=alphabet)
    backend.train_from_iterator([text[:60_000]], trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def test_documents_are_tokenised_as_the_tokenizer_does(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    texts = [text[:2000], "", "héé 日本", text[2000:2500]]
    corpus = load_corpus(texts, tokenizer)
    expected = [tokenizer(t)["input_ids"] for t in texts if t]
    assert [corpus.document(d).tolist() for d in range(corpus.documents)] == expected
    assert corpus.vocabulary_size == len(tokenizer) and corpus.values.dtype == np.uint16


@pytest.mark.parametrize("unit", ["", "é", "—日本 "])
def test_long_documents_are_cut_into_windows_without_a_trace(
    tokenizer: PreTrainedTokenizerFast, text: str, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengthen.data.tokens.WINDOW_CHARACTERS", 3000)
    monkeypatch.setattr("lengthen.data.tokens.OVERLAP_CHARACTERS", 900)
    long = text[:40_000].replace("the", "the" + unit)
    texts = [text[:500], long, long[:3000], long[:3001], long[:9000], text[:100]]
    corpus = load_corpus(texts, tokenizer)
    for document, expected in enumerate(texts):
        assert corpus.document(document).tolist() == tokenizer(expected)["input_ids"]
    # Where windows never agree (one endless word, an overlap too small), the document is tokenised whole.
    monkeypatch.setattr("lengthen.data.tokens.OVERLAP_CHARACTERS", 40)
    assert load_corpus([long], tokenizer).document(0).tolist() == tokenizer(long)["input_ids"]


def test_windows_bound_the_length_of_what_is_tokenised_at_once(
    tokenizer: PreTrainedTokenizerFast, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengthen.data.tokens.WINDOW_CHARACTERS", 3000)
    monkeypatch.setattr("lengthen.data.tokens.OVERLAP_CHARACTERS", 900)
    encoder = make_encoder(tokenizer)
    lengths: list[int] = []
    window = encoder._window
    monkeypatch.setattr(encoder, "_window", lambda text: lengths.append(len(text)) or window(text))
    monkeypatch.setattr("lengthen.data.loading.make_encoder", lambda _: encoder)
    load_corpus([text[:60_000]], tokenizer)
    # A window ends with the piece in which it reaches its size, and pieces are no longer than that.
    assert len(lengths) > 5 and max(lengths) <= 2 * 3000 + 900


def test_windows_are_joined_only_where_ids_and_places_agree() -> None:
    n = AGREEING_TOKENS
    starts = np.arange(6 * n)
    ids = starts % 7
    assert _agreement(ids, starts, ids[2 * n :], starts[2 * n :]) == (4 * n, 2 * n)
    other = ids.copy()
    other[4 * n] += 1  # the places nearest the middle see a token that differs
    joint = _agreement(ids, starts, other[2 * n :], starts[2 * n :])
    assert joint is not None and joint[0] == joint[1] + 2 * n and abs(joint[0] - 4 * n) >= n
    assert _agreement(ids, starts, ids[2 * n :] + 1, starts[2 * n :]) is None
    # Pairs of one letter, taken up one letter later: the ids agree, the places never do.
    assert _agreement(0 * ids, 2 * starts, 0 * ids, 2 * starts + 2 * n + 1) is None


@pytest.mark.parametrize("around", ["", "<s> $A </s>"])
def test_what_is_put_around_a_text_is_told_for_an_alphabet_without_letters(around: str) -> None:
    backend = Tokenizer(models.BPE({"A": 0, "C": 1, "G": 2, "T": 3, "<s>": 4, "</s>": 5}, []))
    if around:
        backend.post_processor = processors.TemplateProcessing(single=around, special_tokens=[("<s>", 4), ("</s>", 5)])
    bases = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    before, after = TokenizerEncoder(bases).added()
    assert (before.tolist(), after.tolist()) == (([4], [5]) if around else ([], []))
    text = "GATTACA" * 40_000
    assert load_corpus([text], bases).document(0).tolist() == bases(text)["input_ids"]


class Slow(PythonBackend):
    """A tokenizer without offsets: a letter is a token, and a class of its own puts tokens around a text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(bos_token="<s>", eos_token="</s>", unk_token="<unk>", **options)

    @property
    def vocab_size(self) -> int:
        return 30

    def get_vocab(self) -> dict[str, int]:
        return {"<unk>": 0, "<s>": 1, "</s>": 2, " ": 3} | {chr(97 + i): 4 + i for i in range(26)}

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return self.get_vocab().get(token, 0)

    def _convert_id_to_token(self, index: int) -> str:
        return {i: t for t, i in self.get_vocab().items()}[index]

    def build_inputs_with_special_tokens(self, token_ids_0: list[int], token_ids_1: Any = None) -> list[int]:
        return [1, *token_ids_0, 2]


def test_a_tokenizer_without_offsets_takes_a_long_document_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lengthen.data.tokens.WINDOW_CHARACTERS", 100)
    slow = Slow()
    assert not slow.is_fast
    before, after = TokenizerEncoder(slow).added()
    assert (before.tolist(), after.tolist()) == ([1], [2])
    text = "to be or not to be " * 30
    corpus = load_corpus([text, "be"], slow)
    assert corpus.document(0).tolist() == [1, *slow.convert_tokens_to_ids(list(text)), 2]
    assert corpus.document(1).tolist() == [1, 5, 8, 2]


def test_small_documents_are_tokenised_in_batches_of_bounded_size(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengthen.data.tokens.BATCH_DOCUMENTS", 4)
    monkeypatch.setattr("lengthen.data.tokens.WINDOW_CHARACTERS", 1000)
    encoder = make_encoder(tokenizer)
    batches: list[list[int]] = []
    ids = encoder._ids
    monkeypatch.setattr(encoder, "_ids", lambda texts: batches.append([len(t) for t in texts]) or ids(texts))
    monkeypatch.setattr("lengthen.data.loading.make_encoder", lambda _: encoder)
    load_corpus(["a" * 10] * 9 + ["a" * 600] * 3, tokenizer)
    assert [b for b in batches if b != [1]] == [
        [10] * 4,
        [10] * 4,
        [10, 600, 600],
        [600],
    ]  # [1] is the identity's probe


def test_lone_surrogates_are_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    for of in (tokenizer, "bytes"):
        with pytest.raises(InputError, match=r"^text 1 holds a lone surrogate \(U\+DC80\) at character 2"):
            load_corpus(["ab", "ab\udc80"], of)


def test_a_directory_without_a_tokenizer_or_with_code_of_its_own_is_refused(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_mamba2().save_pretrained(tmp_path / "bare")
    with pytest.raises(InputError, match=r"holds no tokenizer|cannot be loaded"):
        make_encoder(tmp_path / "bare")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    own, ran = tmp_path / "own", tmp_path / "ran"
    tokenizer.save_pretrained(own)
    settings = json.loads((own / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
    (own / "tokenizer_config.json").write_text(json.dumps(settings))
    (own / "own.py").write_text(
        f"open({str(ran)!r}, 'w')\nfrom transformers import PreTrainedTokenizerFast\n"
        "class Own(PreTrainedTokenizerFast): pass\n"
    )
    try:
        make_encoder(own)
    except InputError as error:
        assert "cannot be loaded" in str(error)
    assert not ran.exists()


def test_saved_tokenizer_is_loaded_from_its_directory(
    tokenizer: PreTrainedTokenizerFast, text: str, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = load_corpus([text], tmp_path)
    assert loaded.fingerprint == load_corpus([text], tokenizer).fingerprint
    with pytest.raises(InputError, match=r"^The tokenizer .* cannot be loaded"):
        load_corpus([text], tmp_path / "missing")
    with pytest.raises(InputError, match=r"^The tokenizer is a int"):
        load_corpus([text], 3)  # type: ignore[arg-type]


def test_another_tokenizer_is_another_cache_entry(
    tokenizer: PreTrainedTokenizerFast, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text[:1000])
    load_corpus(path, tokenizer, cache=tmp_path / "cache")
    assert load_corpus(path, cache=tmp_path / "cache").values.size == 1000
    assert load_corpus(path, tokenizer, cache=tmp_path / "cache").values.size < 1000
    # Two that differ in nothing but the order of their vocabulary.
    letters = sorted(set(text[:1000]) - {"a"})
    for order in (letters, letters[::-1]):
        other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
        other.add_tokens(["a", *order])
        expected = other(text[:1000])["input_ids"]
        assert load_corpus(path, other, cache=tmp_path / "cache").values.tolist() == expected


def test_tokens_beyond_the_vocabularys_size_fit(tokenizer: PreTrainedTokenizerFast) -> None:
    # An id above the number of tokens, as sparse added tokens make it.
    class Sparse(PreTrainedTokenizerFast):
        def get_vocab(self) -> dict[str, int]:
            return {**super().get_vocab(), "far": 70_000}

    sparse = Sparse(tokenizer_object=tokenizer.backend_tokenizer, unk_token="<unk>")
    assert load_corpus(["a"], sparse).values.dtype == np.uint32
