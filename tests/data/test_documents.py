"""Documents out of files, records and data sets: read in pieces and in order, and refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from lengthen.data import load_corpus
from lengthen.errors import InputError
from tests.data.sources import TEXTS, texts_of, write_jsonl, write_parquet


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
