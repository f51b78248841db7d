"""One cell of a study: post-trained and judged from its base's weights, and told where it failed."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_model

from lengthen.studies import cells
from lengthen.studies.cells import StudyCell, keep_weights, post_trained, run_cell, train_base
from lengthen.studies.settings import Base, Setting
from lengthen.training import Mamba2Recipe

BASE = Base(Mamba2Recipe(width=16, layers=1, head_dim=16, state_size=8), train_context=16, rows=4, steps=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    train_base(BASE, 0, folder)
    return folder


@pytest.fixture(autouse=True)
def few_sequences(monkeypatch):
    monkeypatch.setattr(cells, "JUDGED_TOKENS", 0)


def cell_of(setting, folder):
    run_cell(setting, 0, folder)
    return StudyCell.load(folder / f"{setting.key(0)}.json")


def test_a_base_is_trained_and_its_weights_are_there_whole(folder):
    assert [path.name for path in folder.glob("*.safetensors")] == [f"{BASE.key(0)}.safetensors"]
    untrained = BASE.recipe.build(0)
    trained = BASE.recipe.build(0)
    load_model(trained, str(folder / f"{BASE.key(0)}.safetensors"))
    assert any(not torch.equal(a, b) for a, b in zip(untrained.parameters(), trained.parameters()))


def test_the_base_itself_is_judged_without_training_and_an_arm_is_another_model(folder):
    before, arm = cell_of(Setting(BASE).before, folder), cell_of(Setting(BASE, steps=3), folder)
    assert before.failed is None and before.n == 16
    assert before.setting == json.loads(json.dumps(Setting(BASE).before.describe()))
    assert all(math.isfinite(x) and x > 1 for x in (before.in_context, before.far, before.own_reset))
    assert arm.in_context != before.in_context and arm.seconds > 0
    again = cell_of(Setting(BASE, steps=3), folder)
    assert (again.in_context, again.far, again.own_reset) == (arm.in_context, arm.far, arm.own_reset)


def test_a_run_whose_loss_is_lost_says_why():
    assert "nan" in post_trained(BASE.recipe.build(0), Setting(BASE, "zero", 9, 1e6), 0)
    assert post_trained(BASE.recipe.build(0), Setting(BASE, "zero", 2), 0) is None


def test_weights_half_written_never_stand_under_their_name(tmp_path, monkeypatch):
    def stopped(model, path):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(cells, "save_model", stopped)
    with pytest.raises(KeyboardInterrupt):
        keep_weights(BASE.recipe.build(0), tmp_path / "base.safetensors")
    assert not (tmp_path / "base.safetensors").exists()


def test_as_many_sequences_are_judged_as_their_tokens_allow(folder, monkeypatch):
    monkeypatch.setattr(cells, "JUDGED_TOKENS", 20 * 64 * BASE.train_context)
    assert cell_of(Setting(BASE).before, folder).n == 20


def test_an_arm_s_windows_come_in_another_order_under_another_seed():
    first, again, other = (BASE.recipe.build(0) for _ in range(3))
    for model, seed in ((first, 0), (again, 0), (other, 1)):
        assert post_trained(model, Setting(BASE, "zero", 2), seed) is None
    same, different = ([torch.equal(a, b) for a, b in zip(first.parameters(), m.parameters())] for m in (again, other))
    assert all(same) and not all(different)


def test_only_lanes_get_the_plays_in_sections(monkeypatch):
    longest = {}

    def run(model, corpus, intervention, *rest, **options):
        longest[intervention.name] = int(corpus.lengths.max())

    monkeypatch.setattr(cells, "run_training", run)
    for text in ("tbptt", "state-passing"):
        post_trained(BASE.recipe.build(0), Setting(BASE, text, 2), 0)
    assert longest["tbptt"] == 64 * BASE.train_context + 1 < longest["state-passing"]
