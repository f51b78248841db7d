"""A corpus: its fingerprint, its width, its sections, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lengthen.data import load_corpus
from lengthen.data.corpus import CorpusWriter, token_dtype
from lengthen.errors import InputError, RunError


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


def test_full_disk_is_a_failed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "r+b", buffering=0) as full:
        monkeypatch.setattr("lengthen.data.corpus.tempfile.TemporaryFile", lambda: full)
        with pytest.raises(RunError, match=r"^The tokens cannot be written \(.*No space left"):
            load_corpus(["a"])


def test_sections_cut_every_document_anew_and_keep_all_its_values() -> None:
    corpus = load_corpus(["abcdefg", "hi", "jkl"])
    cut = corpus.sections(3)
    assert cut.lengths.tolist() == [3, 3, 1, 2, 3]
    assert cut.values is corpus.values and cut.content == corpus.content
    assert cut.inputs.tolist() == [2, 2, 0, 1, 2]  # the last position of each has no target
    with pytest.raises(InputError, match=r"^A section must be at least 2 positions long, not 1\.$"):
        corpus.sections(1)


def test_a_window_needs_one_position_more_where_the_next_is_the_target() -> None:
    load_corpus(["ab", "abcde"]).require_context(4)
    with pytest.raises(InputError, match=r"^The longest document has 5 tokens, but a training context of 5 needs 6;"):
        load_corpus(["ab", "abcde"]).require_context(5)
    frames = load_corpus([np.zeros((5, 1))], targets=[np.arange(5)])
    frames.require_context(5)
    with pytest.raises(InputError, match=r"^The longest document has 5 frames, but a training context of 6 needs 6;"):
        frames.require_context(6)
    with pytest.raises(InputError, match=r"^The training context must be at least 1 position, not 0\.$"):
        frames.require_context(0)


def test_a_writer_tells_when_its_limit_is_reached() -> None:
    writer = CorpusWriter(np.uint8, 256, limit=5)
    assert writer.add(iter([np.array([1, 2]), np.array([3])]))
    assert writer.add([])
    assert not writer.add([np.array([4, 5, 6])])
    corpus = writer.finish("the list")
    assert corpus.values.tolist() == [1, 2, 3, 4, 5] and corpus.boundaries.tolist() == [0, 3, 5]
    with pytest.raises(InputError, match=r"^The list is empty"):
        CorpusWriter(np.uint8, 256).finish("The list")


def test_no_id_needs_more_than_32_bits() -> None:
    assert token_dtype(2**32) == np.uint32
    with pytest.raises(InputError, match="beyond 2"):
        token_dtype(2**32 + 1)
