"""Sources of documents that tests write, and a corpus read back as texts."""

from __future__ import annotations

import json
from pathlib import Path

from lengthen.data import Corpus

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
