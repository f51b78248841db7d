"""Every kind of source gives the same corpus, and every kind of wrong input a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lengthen.data import Document, load_corpus
from lengthen.data.documents import read_texts
from lengthen.data.loading import _build
from lengthen.data.tokens import ByteEncoder
from lengthen.errors import InputError
from tests.data.sources import TEXTS, texts_of, write_jsonl, write_parquet


def test_all_sources_of_the_same_documents_give_the_same_corpus(tmp_path: Path) -> None:
    directory = tmp_path / "texts"
    directory.mkdir()
    for number, text in enumerate(TEXTS):
        (directory / f"{number}.txt").write_bytes(text.encode())
    (directory / "notes.md").write_text("not read")
    sources = [
        TEXTS,
        [Document(str(n), text) for n, text in enumerate(TEXTS)],
        directory,
        str(directory),
        write_jsonl(tmp_path / "a.jsonl", TEXTS),
        write_parquet(tmp_path / "a.parquet", TEXTS),
        [np.frombuffer(text.encode(), dtype=np.uint8) for text in TEXTS],
    ]
    corpora = [load_corpus(source, vocabulary_size=256 if source is sources[-1] else None) for source in sources]
    assert {corpus.fingerprint for corpus in corpora} == {corpora[0].fingerprint}
    assert texts_of(corpora[0]) == TEXTS
    assert isinstance(corpora[2].values, np.memmap) and corpora[2].values.dtype == np.uint8
    assert load_corpus(write_jsonl(tmp_path / "b.ndjson", TEXTS, "body"), text_key="body").documents == 3
    assert texts_of(load_corpus(directory / "1.txt")) == TEXTS[1:2]


def test_empty_documents_are_left_out_and_limits_kept() -> None:
    assert texts_of(load_corpus(["", "ab", "", "c"])) == ["ab", "c"]
    assert texts_of(load_corpus(["abc", "def", "ghi"], max_tokens=5)) == ["abc", "de"]
    assert texts_of(load_corpus(["abc", "def", "ghi"], max_tokens=6)) == ["abc", "def"]
    read: list[str] = []
    texts = (read.append(text) or text for text in ["abc", "def", "ghi", "jkl"])
    _build(read_texts(texts), ByteEncoder(), 5, "texts")
    assert read == ["abc", "def"]  # nothing is read beyond the limit
    cut = load_corpus([np.arange(4)[:, None] * 1.0] * 2, targets=[np.arange(4)] * 2, max_tokens=5)
    assert cut.lengths.tolist() == [4, 1] and cut.targets is not None and cut.targets.tolist() == [0, 1, 2, 3, 0]


def test_wrong_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_parquet(tmp_path / "a.parquet", ["a", None])
    frames = np.zeros((3, 2))
    for source, message in [
        (tmp_path / "missing", "does not exist"),
        (tmp_path / "empty", "holds no"),
        (tmp_path / "a.parquet", "^Row 1 of .* holds no string under 'text' but NoneType"),
        ([], "^The list of texts is empty"),
        (["a", 3], "^Item 1 of the list of texts is a int"),
        (np.arange(3), "^The data are a ndarray"),
        ([np.array([1, -1])], "^Array 0 holds the token id -1"),
        ([np.arange(3.0)], r"^Array 0 has shape \(3,\)"),
        ([frames, np.zeros((3, 1))], r"^Array 1 has shape \(3, 1\)"),
        ([frames, np.full((3, 2), np.nan)], "^Array 1 holds a value that is not finite at position 0"),
        ([np.arange(0)], "^The list of arrays is empty"),
    ]:
        with pytest.raises(InputError, match=message):
            load_corpus(source)
    with pytest.raises(InputError, match="no 'body', only 'id', 'text'"):
        load_corpus(tmp_path / "a.parquet", text_key="body")
    with pytest.raises(InputError, match=r"^Array 0 holds the token id 7, outside a vocabulary of 7"):
        load_corpus([np.array([7])], vocabulary_size=7)
    with pytest.raises(InputError, match="go with arrays only"):
        load_corpus(["a"], vocabulary_size=7)
    with pytest.raises(InputError, match="limit on tokens must be at least 1"):
        load_corpus(["a"], max_tokens=0)
    for targets, message in [
        ([], "1 arrays but 0 targets"),
        ([np.arange(2)], r"^Target 0 has shape \(2,\)"),
        ([np.array([0, -1, 2])], "^Target 0 is negative"),
        ([np.array([0, np.inf, 2])], "^Target 0 holds a value that is not finite"),
    ]:
        with pytest.raises(InputError, match=message):
            load_corpus([frames], targets=targets)
