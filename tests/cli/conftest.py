"""What the commands are given: a checkpoint and a text."""

import pytest

from tests.conftest import tiny_mamba2


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_mamba2(n_groups=2).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    from lengthen.data import bundled_plays

    path = tmp_path_factory.mktemp("text") / "plays.txt"
    path.write_text("".join(d.text for d in bundled_plays()[1])[:300_000])
    return path
