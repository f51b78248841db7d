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

from lengthen.data.corpus import Corpus, unwritable
from lengthen.errors import InputError

SCHEMA_VERSION = 1


def cached(folder: Path, description: dict[str, Any], build: Callable[[IO[bytes]], Corpus]) -> Corpus:
    """The corpus that `description` stands for, from `folder` if it is there, else built and put there.

    description: all that decides the tokens (files with sizes and times, tokenizer, options), JSON-able.
    build: writes values to the file it is given and returns the corpus.
    An entry appears under its name only when whole; processes that build the same one do not disturb each other. What a
    killed process was building (.building-*) stays and may be deleted. For corpora of tokens without targets of their own.
    Raises InputError for a folder that cannot be used or an entry that is damaged, RunError where the disk is full.
    """
    text = json.dumps({"schema_version": SCHEMA_VERSION, **description}, sort_keys=True)
    entry = folder / hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    try:
        built = entry.exists()
        if not built:
            folder.mkdir(parents=True, exist_ok=True)
            building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder))
    except (OSError, ValueError) as error:  # ValueError: no name of a file
        raise InputError(f"The cache {folder} cannot be written ({error}); name another directory.") from error
    if built:
        return _open(entry)
    work = building / "entry"  # mkdtemp's own folder is its owner's alone; this one is whose the umask says
    try:
        work.mkdir()
        with (work / "values.bin").open("w+b") as file:
            corpus = build(file)
        about = {
            "dtype": corpus.values.dtype.str,
            "vocabulary_size": corpus.vocabulary_size,
            "content": corpus.content,
        }
        try:
            np.save(work / "boundaries.npy", corpus.boundaries)
            (work / "corpus.json").write_text(json.dumps(about), encoding="utf-8")
        except OSError as error:
            raise unwritable(error) from error
        try:
            os.rename(work, entry)
        except OSError:
            if not entry.exists():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return _open(entry)


def _open(entry: Path) -> Corpus:
    try:
        about = json.loads((entry / "corpus.json").read_text(encoding="utf-8"))
        boundaries = np.load(entry / "boundaries.npy", allow_pickle=False)
        values = np.memmap(entry / "values.bin", dtype=np.dtype(about["dtype"]), mode="r")
        if len(values) != boundaries[-1]:
            raise ValueError(f"{len(values)} tokens where {boundaries[-1]} were written")
        return Corpus(values, boundaries, about["vocabulary_size"], about["content"])
    except PermissionError as error:
        raise InputError(f"The cache entry {entry} cannot be read ({error}); name another cache.") from error
    except Exception as error:  # numpy and json raise errors of many kinds for a file that is not theirs
        raise InputError(f"The cache entry {entry} is damaged ({error}); delete it.") from error
