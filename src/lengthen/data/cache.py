"""Tokenised corpora kept on disk, so that the same files are tokenised once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from lengthen.data.corpus import Corpus
from lengthen.errors import InputError

SCHEMA_VERSION = 1


def cached(folder: Path, description: dict[str, Any], build: Callable[[IO[bytes]], Corpus]) -> Corpus:
    """The corpus that `description` stands for, from `folder` if it is there, else built and put there.

    description: all that decides the tokens (files with sizes and times, tokenizer, options), JSON-able.
    build: writes values to the file it is given and returns the corpus.
    An entry appears under its name only when whole; processes that build the same one do not disturb each other.
    """
    text = json.dumps({"schema_version": SCHEMA_VERSION, **description}, sort_keys=True)
    entry = folder / hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    if entry.exists():
        return _open(entry)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".building-", dir=folder))
    except OSError as error:
        raise InputError(f"The cache {folder} cannot be written ({error}); name another directory.") from error
    try:
        with (work / "values.bin").open("w+b") as file:
            corpus = build(file)
        np.save(work / "boundaries.npy", corpus.boundaries)
        about = {
            "dtype": corpus.values.dtype.str,
            "vocabulary_size": corpus.vocabulary_size,
            "content": corpus.content,
        }
        (work / "corpus.json").write_text(json.dumps(about), encoding="utf-8")
        try:
            os.rename(work, entry)
        except OSError:
            if not entry.exists():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return _open(entry)


def _open(entry: Path) -> Corpus:
    try:
        about = json.loads((entry / "corpus.json").read_text(encoding="utf-8"))
        boundaries = np.load(entry / "boundaries.npy", allow_pickle=False)
        values = np.memmap(entry / "values.bin", dtype=np.dtype(about["dtype"]), mode="r")
        if len(values) != boundaries[-1]:
            raise ValueError(f"{len(values)} tokens where {boundaries[-1]} were written")
        return Corpus(values, boundaries, about["vocabulary_size"], about["content"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"The cache entry {entry} is damaged ({error}); delete it.") from error
