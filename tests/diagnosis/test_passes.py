"""The two runs of a diagnosis: the carried one is one run, the reset one as many as there are training contexts."""

import numpy as np
import pytest
import torch

from lengthen import wrap
from lengthen.diagnosis import checkpoint
from lengthen.diagnosis.checkpoint import Checkpoint
from lengthen.diagnosis.passes import carried_pass, reset_pass
from lengthen.diagnosis.states import head_statistics
from tests.conftest import tiny_mamba2
from tests.diagnosis.test_checkpoint import Stopped

TOKENS = np.random.default_rng(0).integers(256, size=(3, 65))
INTERVALS = [(0, 8), (8, 16), (16, 64), (5, 6)]


@pytest.fixture(scope="module")
def model():
    return wrap(tiny_mamba2())


def losses(model, tokens):
    with torch.no_grad():
        logits = model(torch.as_tensor(tokens[:, :-1])).logits.double()
    targets = torch.as_tensor(tokens[:, 1:])
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none").numpy()


def means(found):
    return np.stack([found[:, a:b].mean(1) for a, b in INTERVALS], 1)


@pytest.mark.parametrize("segment", [None, 7, 16])
def test_the_carried_run_is_one_run_over_the_whole(model, segment):
    found = carried_pass(model, TOKENS, INTERVALS, cuts=[8, 48], keep=48, segment=segment)
    np.testing.assert_allclose(found.sums.means(), means(losses(model, TOKENS)), rtol=1e-5)
    with torch.no_grad():
        states = {cut: model(torch.as_tensor(TOKENS[:, :cut])).final_state for cut in (8, 48)}
    assert found.statistics.keys() == states.keys()
    for cut, state in states.items():
        np.testing.assert_allclose(found.statistics[cut], head_statistics(state), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(head_statistics(found.kept), head_statistics(states[48]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("context", "segment"), [(8, None), (8, 20), (13, 5), (100, None)])
def test_the_reset_run_is_each_window_from_zero(model, context, segment):
    found = reset_pass(model, TOKENS, INTERVALS, context, segment=segment)
    windows = [losses(model, TOKENS[:, start : start + context + 1]) for start in range(0, 64, context)]
    np.testing.assert_allclose(found.means(), means(np.concatenate(windows, 1)), rtol=1e-5)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_run_stopped_anywhere_goes_on_to_the_same_bits(model, tmp_path, monkeypatch, count):
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    told = []

    def stop(done, todo):
        told.append(done)
        if len(told) == count:
            raise Stopped

    options = {"cuts": [8, 48], "keep": 8, "segment": 8}
    whole = carried_pass(model, TOKENS, INTERVALS, **options)

    def again(run):
        told.clear()
        with pytest.raises(Stopped):
            run(checkpoint=Checkpoint(tmp_path / "c", {}, resume=True), progress=stop)
        return run(checkpoint=Checkpoint(tmp_path / "c", {}, resume=True))

    found = again(lambda **more: carried_pass(model, TOKENS, INTERVALS, **options, **more))
    assert np.array_equal(found.sums.sums, whole.sums.sums)
    assert all(np.array_equal(found.statistics[cut], whole.statistics[cut]) for cut in (8, 48))
    assert np.array_equal(head_statistics(found.kept), head_statistics(whole.kept))
    reset = again(lambda **more: reset_pass(model, TOKENS, INTERVALS, 8, segment=8, **more))
    assert np.array_equal(reset.sums, reset_pass(model, TOKENS, INTERVALS, 8, segment=8).sums)
