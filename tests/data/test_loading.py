"""Every kind of source gives the same corpus, and every kind of wrong input a sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from lengthen.data import Corpus, Document, load_corpus
from lengthen.data.documents import read_texts
from lengthen.data.loading import _build
from lengthen.data.tokens import ByteEncoder
from lengthen.errors import InputError, RunError

TEXTS = ["To be, or not to be\r\n", "Ünïcödé — 日本語 🎭", "x"]


def texts_of(corpus: Corpus) -> list[str]:
    return [corpus.document(d).tobytes().decode() for d in range(corpus.documents)]


def write_jsonl(path: Path, texts: list[str], key: str = "text") -> Path:
    path.write_text("".join(json.dumps({"id": 1, key: text}) + "\n" for text in texts), encoding="utf-8")
    return path


def write_parquet(path: Path, texts: list[str | None], key: str = "text") -> Path:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"id": range(len(texts)), key: texts}), path, row_group_size=2)
    return path


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


def test_directory_of_shards_is_read_in_order_of_names(tmp_path: Path) -> None:
    write_parquet(tmp_path / "b.parquet", ["c", "d", "e"])
    write_jsonl(tmp_path / "a.jsonl", ["a", "b"])
    (tmp_path / "c.txt").write_text("f")
    assert texts_of(load_corpus(tmp_path)) == list("abcdef")


def test_text_is_read_in_pieces_across_characters_and_without_its_byte_order_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengthen.data.documents.PIECE_BYTES", 3)
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" + ("\ufeff" + TEXTS[1]).encode())
    assert texts_of(load_corpus(path)) == ["\ufeff" + TEXTS[1]]  # one mark is taken off, not two


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


def test_fingerprint_tells_tokens_boundaries_vocabulary_width_and_targets_apart() -> None:
    frames = [np.zeros((3, 1))]
    corpora = [
        load_corpus(["ab", "cd"]),
        load_corpus(["abc", "d"]),
        load_corpus(["ab", "ce"]),
        load_corpus([np.array([97, 98]), np.array([99, 100])], vocabulary_size=1000),
        load_corpus(frames),
        load_corpus([np.zeros((3, 1, 1))]),
        load_corpus(frames, targets=[np.array([0, 0, 0])]),
        load_corpus(frames, targets=[np.array([0, 0, 1])]),
        load_corpus(["ab", "cd"]).sections(2).sections(3),
    ]
    fingerprints = [corpus.fingerprint for corpus in corpora]
    assert fingerprints[0] == fingerprints.pop()
    assert len(set(fingerprints)) == len(fingerprints)


def test_width_of_tokens_follows_the_vocabulary(tmp_path: Path) -> None:
    for size, dtype in ((256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")):
        path = tmp_path / f"{size}.npy"
        np.save(path, np.array([0, size - 1]))
        corpus = load_corpus(path)
        assert corpus.values.dtype == dtype and corpus.document(0).tolist() == [0, size - 1]
        corpus.require_vocabulary(size)
        with pytest.raises(InputError, match=rf"^The data hold token id {size - 1}, but the model's vocabulary has"):
            corpus.require_vocabulary(size - 1)
    with pytest.raises(InputError, match="frames, not tokens"):
        load_corpus([np.zeros((3, 1))]).require_vocabulary(10)


def test_cache_is_used_until_the_files_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, cache = write_jsonl(tmp_path / "a.jsonl", TEXTS), tmp_path / "cache"
    first = load_corpus(source, cache=cache)
    with monkeypatch.context() as patch:
        patch.setattr("lengthen.data.loading._build", None)  # would fail if called
        again = load_corpus(source, cache=cache)
    assert again.fingerprint == first.fingerprint == load_corpus(source).fingerprint
    assert texts_of(again) == TEXTS and again.vocabulary_size == 256
    assert load_corpus(source, cache=cache, max_tokens=3).values.size == 3
    write_jsonl(source, ["other"])
    assert texts_of(load_corpus(source, cache=cache)) == ["other"]
    write_jsonl(source, ["OTHER"])  # of the same size, a second later
    os.utime(source, ns=(0, source.stat().st_mtime_ns + 10**9))
    assert texts_of(load_corpus(source, cache=cache)) == ["OTHER"]
    entries = sorted(cache.iterdir())
    assert len(entries) == 4 and not any(entry.name.startswith(".") for entry in entries)
    for entry in entries:
        with (entry / "values.bin").open("ab") as file:
            file.write(b"x")
    with pytest.raises(InputError, match=r"^The cache entry .* is damaged .*; delete it\.$"):
        load_corpus(source, cache=cache)


def test_failed_build_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["good"])
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    with pytest.raises(InputError, match=r"b\.parquet cannot be read"):
        load_corpus(tmp_path, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^The cache .* cannot be written"):
        load_corpus(tmp_path / "a.parquet", cache=tmp_path / "file" / "cache")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", r"a\.txt is empty"),
        ("a.txt", b"ab\xff", r"a\.txt is not UTF-8 text: the byte at offset 2 is 0xff"),
        ("a.txt", b"ab\xe2\x82", r"the byte at offset 2 is 0xe2"),  # cut off within a character
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"^Line 2 of .*a\.jsonl is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n\n{"body": "a"}\n', r"^Line 3 of .* has no 'text', only 'body'"),
        ("a.jsonl", b'{"text": 3}\n', r"^Line 1 of .* holds no string under 'text' but int"),
        ("a.jsonl", b"[1]\n", r"^Line 1 of .* is not a JSON object"),
        ("a.jsonl", b'{"text": "\xff"}\n', r"byte 10 of line 1 is 0xff"),
        ("a.jsonl", b'{"text": "a\\ud800"}\n', r"lone surrogate \(U\+D800\) at character 1"),
        ("a.jsonl", b'{"text": ""}\n', r"is empty"),
        ("a.jsonl", b"[" * 100_000, r"is not JSON"),
        ("a.parquet", b"PAR1", r"a\.parquet cannot be read"),
        ("a.npy", b"\x93NUMPY", r"a\.npy is no whole array of numbers"),
        ("a.npy", b"text", r"a\.npy is no whole array of numbers"),
    ],
)
def test_wrong_files_are_refused_in_one_sentence(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_corpus(tmp_path / name)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_offset_of_a_wrong_byte_is_right_across_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lengthen.data.documents.PIECE_BYTES", 4)
    (tmp_path / "a.txt").write_bytes("ab€".encode() + b"\xe2\x82x")
    with pytest.raises(InputError, match="offset 5 is 0xe2"):
        load_corpus(tmp_path / "a.txt")


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


def test_full_disk_is_a_failed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "r+b", buffering=0) as full:
        monkeypatch.setattr("lengthen.data.corpus.tempfile.TemporaryFile", lambda: full)
        with pytest.raises(RunError, match=r"^The tokens cannot be written \(.*No space left"):
            load_corpus(["a"])


def test_hub_data_sets_are_named_by_configuration_and_split(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    asked: list[tuple] = []

    def load_dataset(name: str, config: str | None, *, split: str, streaming: bool) -> object:
        asked.append((name, config, split, streaming))
        whole = datasets.Dataset.from_dict({"text": ["ab", "", "c"]})
        return whole.to_iterable_dataset() if streaming else whole

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert texts_of(load_corpus("hub:me/plays")) == ["ab", "c"]
    assert texts_of(load_corpus("hub:me/plays:en:test", streaming=True)) == ["ab", "c"]
    load_corpus("hub:plays::test", cache=tmp_path)
    load_corpus("hub:plays::test", cache=tmp_path)  # from the cache
    assert asked == [
        ("me/plays", None, "train", False),
        ("me/plays", "en", "test", True),
        ("plays", None, "test", False),
    ]
    with pytest.raises(InputError, match=r"^Row 0 of hub:me/plays has no 'body'"):
        load_corpus("hub:me/plays", text_key="body")
    with pytest.raises(InputError, match="must be written hub:OWNER/NAME"):
        load_corpus("hub:")


def test_a_hub_that_fails_on_the_way_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def rows() -> object:
        yield {"text": "a"}
        raise ConnectionError("the line\nwas cut.")

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows())
    with pytest.raises(InputError, match=r'^The hub data set "hub:a/b" cannot be read at row 1 \(the line was cut\);'):
        load_corpus("hub:a/b", streaming=True)
