"""Effective remembrance in one pass: equal to separate runs, with their tokens, in less time and flat memory."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from lengthen import wrap
from lengthen.diagnosis import effective_remembrance
from lengthen.errors import InputError
from lengthen.models.tiny_models import TINY_MODELS, build_tiny_model
from lengthen.streaming import SEGMENT


def tiny(name):
    return wrap(build_tiny_model(next(found for found in TINY_MODELS if found.title == name)))


TOKENS = np.random.default_rng(0).integers(64, size=(2, 4096))


def separate_runs(model, tokens, end, starts):
    """The definition: one run for each start, logits at the end alone; ([starts, n], tokens processed)."""
    runs, processed = {}, 0
    for start in sorted({0, *starts}):
        state = None
        for low in range(start, end, SEGMENT):
            ids = torch.as_tensor(tokens[:, low : min(end, low + SEGMENT)])
            with torch.no_grad():
                output = model(input_ids=ids, initial_state=state, logits_to_keep=1)
            state, processed = output.final_state, processed + ids.numel()
        runs[start] = output.logits[:, -1].double().softmax(-1)
    return np.stack([((runs[0] - runs[s]).abs().sum(-1) / 2).numpy() for s in starts]), processed


def starts_below(end):
    return [end * k // 32 for k in range(32)]


@pytest.mark.parametrize("end", [512, 4096])
def test_one_pass_equals_separate_runs(end):
    model = tiny("Mamba2")
    expected, processed = separate_runs(model, TOKENS[:1], end, starts_below(end))
    found = effective_remembrance(model, TOKENS[:1], ends=[end], starts=starts_below(end))
    values = [point.mean for point in found.points]
    assert [(point.end, point.start) for point in found.points] == [(end, start) for start in starts_below(end)]
    np.testing.assert_allclose(values, expected[:, 0], atol=1e-5, rtol=0)
    assert found.tokens == processed and values[0] == 0 and max(values) > 0.01


def timed(end):
    """(tokens apart, tokens in one pass, the time of one pass over that apart): the best of nine, as load only adds."""
    model = tiny("Mamba2")
    apart, together = [], []
    for _ in range(9):
        began = time.process_time()
        _, processed = separate_runs(model, TOKENS[:1], end, starts_below(end))
        between = time.process_time()
        found = effective_remembrance(model, TOKENS[:1], ends=[end], starts=starts_below(end))
        apart.append(between - began)
        together.append(time.process_time() - between)
    return processed, found.tokens, min(together) / min(apart)


@pytest.mark.acceptance
@pytest.mark.parametrize("end, share", [(512, 0.6), (4096, 1.05)])
def test_one_pass_takes_no_longer_than_separate_runs(end, share):
    """At 512 tokens a call's own cost counts most, at 4096 the tokens' do.

    In a process whose heap keeps what is freed, for both sides: where glibc gives it back after every call, and by where
    the heap happens to begin it does or does not, page faults cost as much as the model.
    """
    work = f"from tests.diagnosis.test_remembrance import timed; print(*timed({end}))"
    keeps = {"MALLOC_TRIM_THRESHOLD_": "2000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}
    done = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, env=os.environ | keeps)
    assert done.returncode == 0, done.stderr
    apart, together, ratio = done.stdout.split()
    print(f"T = {end}: {apart} tokens apart, {together} in one pass, {float(ratio):.0%} of the time")
    assert float(ratio) <= share


def test_several_ends_in_one_pass_over_sequences_in_groups(monkeypatch):
    """Each end's values are those of a pass of its own, and the means are over all sequences."""
    monkeypatch.setattr("lengthen.diagnosis.remembrance.ROWS", 2)
    model, starts = tiny("Mamba2"), [0, 10, 200, 290]
    found = effective_remembrance(model, TOKENS, ends=[100, 300], starts=starts, segment=33)
    for end in (100, 300):
        expected, _ = separate_runs(model, TOKENS, end, [s for s in starts if s < end])
        points = [p for p in found.points if p.end == end]
        np.testing.assert_allclose([p.mean for p in points], expected.mean(1), atol=1e-5)
        np.testing.assert_allclose([p.stderr for p in points], expected.std(1, ddof=1) / 2**0.5, atol=1e-5)
        assert {p.n for p in points} == {2}


def test_memory_does_not_grow_with_the_end_and_a_hybrid_says_that_it_does():
    model = tiny("Mamba2")
    short, long = (
        effective_remembrance(model, TOKENS, ends=[end], starts=[0, end // 2]).state_bytes for end in (64, 4096)
    )
    assert short == long
    hybrid = tiny("Bamba")
    short, long = (
        effective_remembrance(hybrid, TOKENS, ends=[end], starts=[0, end // 2]).state_bytes for end in (64, 256)
    )
    assert long > 2 * short


def test_a_hybrid_equals_separate_runs():
    """Runs in one row see nothing of each other in attention either, and count positions from their own start."""
    hybrid = tiny("Bamba")
    starts = [0, 7, 50, 90]
    found = effective_remembrance(hybrid, TOKENS, ends=[100], starts=starts, segment=16)
    expected, _ = separate_runs(hybrid, TOKENS, 100, starts)
    np.testing.assert_allclose([p.mean for p in found.points], expected.mean(1), atol=1e-5)


def test_bad_input():
    model = tiny("Mamba2")
    for options, match in (
        ({"ends": [5000], "starts": [0]}, "5000"),
        ({"ends": [], "starts": [0]}, "cannot end"),
        ({"ends": [64], "starts": [64]}, "below the end 64"),
        ({"ends": [64], "starts": [-1]}, "-1"),
    ):
        with pytest.raises(InputError, match=match):
            effective_remembrance(model, TOKENS, **options)
    from transformers import Mamba2Model

    with pytest.raises(InputError, match="vocabulary"):
        effective_remembrance(wrap(Mamba2Model(model.config)), TOKENS, ends=[64], starts=[0])
