"""The cache of tokenised corpora: an entry serves until its files change, and a failed one leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lengthen.data import load_corpus
from lengthen.errors import InputError
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
