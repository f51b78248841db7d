"""Documents out of files, records and lists: every source becomes a stream of documents, read piece by piece."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lengthen.errors import InputError, one_line

PIECE_BYTES = 1 << 20
JSONL_SUFFIXES = (".jsonl", ".ndjson")
PARQUET_SUFFIXES = (".parquet",)
DIRECTORY_SUFFIXES = (".txt", *JSONL_SUFFIXES, *PARQUET_SUFFIXES)
HUB_PREFIX = "hub:"


@dataclass(frozen=True)
class Document:
    """A named text."""

    name: str
    text: str


@dataclass(frozen=True)
class DocumentStream:
    """A document that is read once, in pieces; joined, the pieces are its text. `name` serves messages only."""

    name: str
    pieces: Iterable[str]


def text_files(path: Path) -> list[Path]:
    """The files that `path` stands for: itself, or the files of a directory that can be read, sorted by name.

    A directory's own *.txt, *.jsonl, *.ndjson and *.parquet files count, not those of its subdirectories.
    Raises InputError where nothing is found.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist; give a text file, a directory, a JSONL or a Parquet file.")
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix in DIRECTORY_SUFFIXES and file.is_file())
    if not found:
        raise InputError(f"The directory {path} holds no {', '.join('*' + s for s in DIRECTORY_SUFFIXES)} file.")
    return found


def read_files(paths: Iterable[Path], text_key: str) -> Iterator[DocumentStream]:
    """The documents of the files in order, chosen by suffix: JSONL, Parquet, and any other is one text."""
    for path in paths:
        if path.suffix in JSONL_SUFFIXES:
            yield from read_jsonl(path, text_key)
        elif path.suffix in PARQUET_SUFFIXES:
            yield from read_parquet(path, text_key)
        else:
            yield DocumentStream(str(path), read_text(path))


def read_text(path: Path) -> Iterator[str]:
    """A UTF-8 file's text in pieces of about a megabyte, line ends as they stand, a byte order mark left out.

    Raises InputError with the offset of the first byte that is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    consumed, first = 0, True
    try:
        with path.open("rb") as file:
            while True:
                chunk = file.read(PIECE_BYTES)
                pending = len(decoder.getstate()[0])
                try:
                    piece = decoder.decode(chunk, final=not chunk)
                except UnicodeDecodeError as error:
                    offset = consumed - pending + error.start
                    raise InputError(
                        f"{path} is not UTF-8 text: the byte at offset {offset} is "
                        f"0x{error.object[error.start]:02x}; convert the file to UTF-8 first."
                    ) from error
                consumed += len(chunk)
                if piece:
                    yield piece.removeprefix("\ufeff") if first else piece
                    first = False
                if not chunk:
                    return
    except OSError as error:
        raise unreadable(path, error) from error


def read_jsonl(path: Path, text_key: str) -> Iterator[DocumentStream]:
    """One document a line: the string under `text_key` of a JSON object; blank lines are passed over."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield record_document(_parse(path, number, line), text_key, f"line {number} of {path}")
    except OSError as error:
        raise unreadable(path, error) from error


def _parse(path: Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text: byte {error.start} of line {number} is "
            f"0x{error.object[error.start]:02x}; convert the file to UTF-8 first."
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"Line {number} of {path} is not JSON ({error}); write one JSON object a line.") from error


def read_parquet(path: Path, text_key: str) -> Iterator[DocumentStream]:
    """One document a row: the string in column `text_key`."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as table:
            columns = list(table.schema_arrow.names)
            if text_key not in columns:
                raise _no_key(path, text_key, columns)
            row = 0
            for batch in table.iter_batches(batch_size=1024, columns=[text_key]):
                for record in batch.to_pylist():
                    yield record_document(record, text_key, f"row {row} of {path}")
                    row += 1
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error


def read_hub(source: str, text_key: str, streaming: bool) -> Iterator[DocumentStream]:
    """One document a row of a hub data set, named hub:OWNER/NAME[:CONFIG[:SPLIT]] (split "train" unless said).

    With `streaming` rows come as they are downloaded; else the whole split is downloaded first, and kept.
    """
    import datasets

    name, *rest = source.removeprefix(HUB_PREFIX).split(":")
    if not name or len(rest) > 2:
        raise InputError(f'The hub data set "{source}" must be written hub:OWNER/NAME[:CONFIG[:SPLIT]].')
    config = rest[0] or None if rest else None
    split = rest[1] if len(rest) == 2 and rest[1] else "train"
    row = 0
    try:
        # The documents go out from inside the try: with streaming, reading a row is what downloads it.
        for record in datasets.load_dataset(name, config, split=split, streaming=streaming):
            yield record_document(record, text_key, f"row {row} of {source}")
            row += 1
    except InputError:
        raise
    except Exception as error:  # the hub's clients raise errors of many libraries
        raise InputError(
            f'The hub data set "{source}" cannot be read at row {row} ({one_line(error)}); check its name, '
            "configuration and split, and that the hub can be reached."
        ) from error


def read_texts(texts: Iterable[str | Document]) -> Iterator[DocumentStream]:
    """The documents of a list of strings or Documents."""
    for number, text in enumerate(texts):
        if isinstance(text, Document):
            yield DocumentStream(text.name, [text.text])
        elif isinstance(text, str):
            yield DocumentStream(f"text {number}", [text])
        else:
            raise InputError(
                f"Item {number} of the list of texts is a {type(text).__name__}; give strings or Documents only."
            )


def record_document(record: Any, text_key: str, where: str) -> DocumentStream:
    """The document in one record of a JSONL file, a Parquet file or a data set; `where` serves messages."""
    if not isinstance(record, dict):
        raise InputError(f"{_capital(where)} is not a JSON object; write objects with the key {text_key!r}.")
    if text_key not in record:
        raise _no_key(where, text_key, list(record))
    text = record[text_key]
    if not isinstance(text, str):
        raise InputError(
            f"{_capital(where)} holds no string under {text_key!r} but {type(text).__name__}; a document must be a string."
        )
    return DocumentStream(where, [text])


def unreadable(path: Path, error: Exception) -> InputError:
    """The refusal of a file that the system or its format's reader cannot read."""
    return InputError(f"{path} cannot be read ({one_line(error)}); restore the file or leave it out.")


def _no_key(where: str | Path, text_key: str, keys: list[str]) -> InputError:
    return InputError(
        f"{_capital(str(where))} has no {text_key!r}, only {', '.join(map(repr, keys))}; give the text that name, or in "
        "Python name its key to load_corpus(text_key=...)."
    )


def _capital(sentence: str) -> str:
    """A sentence's first letter made a capital, unless it begins with a path."""
    return sentence[:1].upper() + sentence[1:] if sentence.startswith(("line ", "row ")) else sentence
