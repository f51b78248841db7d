"""The cache of tokenised corpora: an entry serves until its files change, and a failed one leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from lengthen.data import Corpus, load_corpus
from lengthen.data.cache import cached
from lengthen.errors import InputError, RunError
from tests.data.sources import TEXTS, texts_of, write_jsonl, write_parquet


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


@pytest.mark.parametrize(
    "file, content",
    [
        ("values.bin", b"x"),
        ("values.bin", b""),
        ("boundaries.npy", b""),
        ("boundaries.npy", b"PK\x03\x04"),
        ("boundaries.npy", np.array([], np.int64)),
        ("boundaries.npy", np.int64(3)),
        ("corpus.json", b"{}"),
        ("corpus.json", b"[]"),
        ("corpus.json", None),
    ],
)
def test_a_damaged_entry_is_a_sentence(tmp_path: Path, file: str, content: object) -> None:
    source, cache = write_jsonl(tmp_path / "a.jsonl", TEXTS), tmp_path / "cache"
    load_corpus(source, cache=cache)
    (entry,) = cache.iterdir()
    if content is None:
        (entry / file).unlink()
    elif isinstance(content, bytes):
        (entry / file).write_bytes(content)
    else:
        np.save(entry / file, content)
    with pytest.raises(InputError, match=r"^The cache entry .* is damaged .*; delete it\.$"):
        load_corpus(source, cache=cache)


def built(file: IO[bytes], text: bytes = b"abc") -> Corpus:
    file.write(text)
    file.flush()
    return Corpus(np.frombuffer(text, np.uint8), np.array([0, len(text)]), 256, "content")


def test_an_entry_is_whose_the_umask_says_and_is_read_from_the_disk(tmp_path: Path) -> None:
    corpus = cached(tmp_path, {"text": 1}, built)
    (entry,) = tmp_path.iterdir()
    mask = os.umask(0)
    os.umask(mask)
    assert entry.stat().st_mode & 0o777 == 0o777 & ~mask
    assert isinstance(corpus.values, np.memmap) and not corpus.values.flags.writeable
    assert corpus.values.dtype == np.uint8 and bytes(corpus.values) == b"abc"


def test_of_two_that_build_the_same_entry_the_first_is_kept(tmp_path: Path) -> None:
    def late(file: IO[bytes]) -> Corpus:
        cached(tmp_path, {"text": 1}, built)
        return built(file, b"xyz")

    assert bytes(cached(tmp_path, {"text": 1}, late).values) == b"abc"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_rename_that_fails_for_another_reason_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr("lengthen.data.cache.os.rename", refused)
    with pytest.raises(OSError, match=r"^no$"):
        cached(tmp_path, {"text": 1}, built)
    assert list(tmp_path.iterdir()) == []


def test_another_schema_is_another_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(tmp_path, {"text": 1}, built)
    monkeypatch.setattr("lengthen.data.cache.SCHEMA_VERSION", 2)
    cached(tmp_path, {"text": 1}, built)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lengthen.data.cache.np.save", full)
    with pytest.raises(RunError, match=r"^The tokens cannot be written .*free disk space"):
        cached(tmp_path, {"text": 1}, built)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a" * 300, "a\0b"])
def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path, name: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    with pytest.raises(InputError, match=r"(?s)^The cache .* cannot be written"):
        load_corpus(source, cache=tmp_path / name)


def test_failed_build_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["good"])
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    with pytest.raises(InputError, match=r"b\.parquet cannot be read"):
        load_corpus(tmp_path, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^The cache .* cannot be written"):
        load_corpus(tmp_path / "a.parquet", cache=tmp_path / "file" / "cache")
