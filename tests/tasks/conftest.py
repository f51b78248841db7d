"""The codecs that prompts are made with: bytes and three trained tokenizers."""

from __future__ import annotations

import pytest

from lengthen.tasks import Codec
from tests.tasks.tokenizers_in_tests import trained

KINDS = ("bytes", "bpe", "unigram", "wordpiece")


@pytest.fixture(scope="session")
def codecs():
    return {kind: Codec("bytes" if kind == "bytes" else trained(kind)) for kind in KINDS}


@pytest.fixture(scope="session")
def by_bytes(codecs):
    return codecs["bytes"]
