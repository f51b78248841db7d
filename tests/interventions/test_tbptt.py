"""TBPTT over lanes: a state is zero exactly at document starts, and elsewhere the one of that document's text so far."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthen.data import Batch, Corpus, LaneWindows
from lengthen.interventions import TBPTT, Rows
from lengthen.state import RecurrentState, TensorSpec
from tests.data.random_corpora import settings_of_windows

SPECS = {"layer": {"read": TensorSpec("recurrent")}}


def state_of(read: torch.Tensor) -> RecurrentState:
    """A state that remembers how many tokens it has read, and their sum: read float64 [B, 2]."""
    return RecurrentState({"layer": {"read": read}}, SPECS, "counting")


def step(intervention: TBPTT, windows: LaneWindows, number: int) -> tuple[Batch, torch.Tensor]:
    """A step of a model whose state counts and adds up its tokens; the batch and the rows' initial states."""
    batch = next(windows)
    rows = Rows.of(batch, number, shuffled=windows.shuffled, lanes=windows.lanes)
    initial = intervention.initial_state(rows, state_of(torch.zeros(len(rows), 2, dtype=torch.float64)))
    before = initial.tensors["layer"]["read"]
    real = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).double()
    seen = torch.stack([real.sum(1), (batch["input_ids"] * real).sum(1)], dim=1)
    intervention.observe(rows, state_of(before + seen))
    return batch, before


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(settings_of_windows(), st.integers(1, 12), st.integers(0, 11))
def test_a_lane_s_state_is_its_document_s_so_far(
    tmp_path_factory: pytest.TempPathFactory, setting: tuple[Corpus, int, int, int], steps: int, stop: int
) -> None:
    corpus, context, lanes, seed = setting
    windows, intervention = LaneWindows(corpus, context=context, lanes=lanes, seed=seed), TBPTT()
    for number in range(steps):
        if number == stop:  # a checkpoint, and another process that goes on from it
            folder = tmp_path_factory.mktemp("checkpoint")
            intervention.save(folder)
            position = json.loads(json.dumps(windows.state_dict()))
            windows, intervention = LaneWindows(corpus, context=context, lanes=lanes, seed=seed), TBPTT()
            windows.load_state_dict(position)
            intervention.load(folder)
        batch, before = step(intervention, windows, number)
        for lane in range(lanes):
            document, offset = int(batch["document"][lane]), int(batch["offset"][lane])
            so_far = corpus.document(document)[:offset].astype(float)
            assert before[lane].tolist() == [offset, so_far.sum()]
            assert bool(batch["start"][lane]) == (offset == 0)
            assert intervention.bank.provenance(lane).document == document
