"""A folder with a tiny model, a text, and another text."""

import pytest

from tests.conftest import tiny_mamba2
from tests.training_free.texts import text


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    tiny_mamba2().save_pretrained(folder / "model")
    (folder / "text.txt").write_text(text(9000))
    (folder / "other.txt").write_text(text(2000, 1))
    return folder
