"""One function from any source of data to a corpus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lengthen.data.arrays import array_corpus
from lengthen.data.cache import cached
from lengthen.data.corpus import Corpus, CorpusWriter, token_dtype
from lengthen.data.documents import (
    HUB_PREFIX,
    Document,
    DocumentStream,
    read_files,
    read_hub,
    read_texts,
    text_files,
    unreadable,
)
from lengthen.data.tokens import Encoder, make_encoder
from lengthen.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Source = str | Path | Sequence[str] | Sequence[Document] | Sequence[NDArray[Any]]
"""Where data come from: see load_corpus."""


def load_corpus(
    source: Source,
    tokenizer: str | Path | PreTrainedTokenizerBase = "bytes",
    *,
    text_key: str = "text",
    targets: Sequence[NDArray[Any]] | None = None,
    vocabulary_size: int | None = None,
    max_tokens: int | None = None,
    streaming: bool = False,
    cache: str | Path | None = None,
) -> Corpus:
    """Reads, tokenises and memory-maps data of any supported kind.

    source, a path or name:
        a file *.jsonl or *.ndjson (a document a line) or *.parquet (a document a row); *.npy (one array); any
            other file is UTF-8 text, one document;
        a directory: all its *.txt, *.jsonl, *.ndjson and *.parquet files, sorted by name;
        hub:OWNER/NAME[:CONFIG[:SPLIT]], a data set of the Hugging Face hub, split "train" unless said.
    source, a list: strings or Documents; or numpy arrays, one a document: integers [length] are token ids, floats
        [length, ...features] are frames.
    tokenizer: "bytes" (UTF-8 bytes, vocabulary 256), a tokenizer's directory or hub name, or a tokenizer of
        transformers, which adds to each document what it adds of its own accord (BOS, EOS). Arrays need none.
    text_key: the JSONL key, Parquet column or data set column that holds the text.
    targets: with arrays: for each of them what its positions should give, integers [length] (-100: nothing) or
        floats [length, ...]. Without, the target of a position is the next position's value.
    vocabulary_size: with integer arrays: the number of ids; the largest plus one where None.
    max_tokens: read no further than this many tokens or frames; the document then in hand is cut.
    streaming: with a hub data set: tokenise rows as they come and keep no copy of the data set.
    cache: a directory that keeps the tokens of files and hub data sets for the next time: files are told by path,
        size and time, a hub data set by its name alone. Where None, tokens lie in a temporary file.

    Documents without any text are left out. Raises InputError, in a sentence that names file and place, for what
    is missing, empty, damaged or not UTF-8, and where nothing is left.
    """
    if isinstance(source, (str, Path)) and not str(source).startswith(HUB_PREFIX):
        path = Path(source)
        if path.suffix == ".npy" and path.is_file():
            return array_corpus([_load_array(path)], targets, vocabulary_size, max_tokens)
    elif not isinstance(source, (str, Path)):
        if isinstance(source, np.ndarray) or not isinstance(source, Sequence):
            raise InputError(
                f"The data are a {type(source).__name__}; give a path, a hub data set, or a list of strings or arrays."
            )
        if len(source) and all(isinstance(item, np.ndarray) for item in source):
            arrays: Sequence[Any] = source
            return array_corpus(arrays, targets, vocabulary_size, max_tokens)
    if targets is not None or vocabulary_size is not None:
        raise InputError("targets and vocabulary_size go with arrays only; a text's tokenizer decides both.")

    encoder = make_encoder(tokenizer)
    if not isinstance(source, (str, Path)):
        texts: Sequence[Any] = source
        return _build(read_texts(texts), encoder, max_tokens, "The list of texts")
    description: dict[str, Any]
    documents: Iterable[DocumentStream]
    if str(source).startswith(HUB_PREFIX):
        documents = read_hub(str(source), text_key, streaming)
        description = {"hub": str(source)}
    else:
        files = text_files(Path(source))
        documents = read_files(files, text_key)
        stats = [(str(file.resolve()), file.stat()) for file in files]
        description = {"files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]}
    if cache is None:
        return _build(documents, encoder, max_tokens, str(source))
    description |= {"tokenizer": encoder.identity(), "text_key": text_key, "max_tokens": max_tokens}
    return cached(Path(cache), description, lambda file: _build(documents, encoder, max_tokens, str(source), file))


def _build(
    documents: Iterable[DocumentStream],
    encoder: Encoder,
    max_tokens: int | None,
    source: str,
    values_file: IO[bytes] | None = None,
) -> Corpus:
    size = encoder.vocabulary_size
    writer = CorpusWriter(token_dtype(size), size, limit=max_tokens, values_file=values_file)
    for chunks in encoder.encode(documents):
        if not writer.add(chunks):
            break
    return writer.finish(source)


def _load_array(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise InputError(f"{path} is no whole array of numbers as numpy.save writes it; save it again.") from error
    except (OSError, EOFError) as error:
        raise unreadable(path, error) from error
    return array
