"""A diagnosis's checkpoint: there whole or not at all, and of one diagnosis alone."""

import numpy as np
import pytest
import torch

from lengthen.diagnosis.checkpoint import Checkpoint
from lengthen.errors import InputError, RunError
from lengthen.results import Patch
from lengthen.state import RecurrentState, TensorSpec


class Stopped(Exception):
    pass


def test_a_checkpoint_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    saved = Checkpoint(tmp_path / "c", {"a": 1})
    saved.save("pass", 8, {"x": np.arange(3)}, {})

    def stop(*_, **__):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", stop)
        with pytest.raises(Stopped):
            saved.save("pass", 16, {"x": np.arange(5)}, {})
    again = Checkpoint(tmp_path / "c", {"a": 1}, resume=True)
    assert again.load("pass").position == 8
    again.save("pass", 16, {"x": np.arange(5)}, {})
    found = again.load("pass")
    assert found.position == 16 and found.arrays["x"].tolist() == [0, 1, 2, 3, 4]
    assert [p.name for p in (tmp_path / "c").glob("pass-*")] == ["pass-16"]


STATE = RecurrentState({"mix": {"h": torch.arange(6.0).view(2, 3)}}, {"mix": {"h": TensorSpec("recurrent")}}, "toy")


def test_a_pass_comes_back_with_its_arrays_and_states(tmp_path):
    saved = Checkpoint(tmp_path / "c", {"a": 1})
    assert saved.load("pass") is None
    saved.save("pass", 100, {"x": np.arange(3.0)}, {"state": STATE})
    saved.save("other", 7, {}, {})
    found = Checkpoint(tmp_path / "c", {"a": 1}, resume=True).load("pass")
    assert found.position == 100 and found.arrays["x"].tolist() == [0, 1, 2]
    assert torch.equal(found.states["state"].tensors["mix"]["h"], STATE.tensors["mix"]["h"])


def test_the_furthest_counts_as_a_number_and_not_as_a_word(tmp_path):
    saved = Checkpoint(tmp_path / "c", {})
    saved.save("pass", 90, {}, {})
    saved.save("pass", 1000, {}, {})
    assert saved.load("pass").position == 1000


def test_a_folder_of_other_settings_is_refused_and_left_alone_until_it_is_begun_again(tmp_path):
    Checkpoint(tmp_path / "c", {"seed": 0, "n": 16}).save("pass", 8, {}, {})
    with pytest.raises(InputError, match=r"was of other settings \(n, seed\); give the same ones"):
        Checkpoint(tmp_path / "c", {"seed": 1}, resume=True)
    assert Checkpoint(tmp_path / "c", {"seed": 0, "n": 16}, resume=True).load("pass").position == 8
    assert Checkpoint(tmp_path / "c", {"seed": 1}).load("pass") is None


def test_a_part_is_computed_once(tmp_path):
    saved, computed = Checkpoint(tmp_path / "c", {}), []

    def compute():
        computed.append(1)
        return Patch("mix", None, 0.5, 0.1)

    first, second = (saved.result("part", Patch, compute) for _ in range(2))
    assert first == second and len(computed) == 1
    saved.remove()
    assert not (tmp_path / "c").exists()


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path):
    saved = Checkpoint(tmp_path / "c", {})
    saved.remove()
    (tmp_path / "c").write_text("a file")
    with pytest.raises(RunError, match=r"^The checkpoint .*pass-8 cannot be written \(.*choose another place\.$"):
        saved.save("pass", 8, {}, {})
