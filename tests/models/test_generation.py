"""What generate() carries: a state in the place of a cache, whose rows follow the beams, and no library's filled cache."""

import pytest
import torch
from transformers import DynamicCache

from lengthen import wrap
from lengthen.models.agreement import relative_error
from lengthen.models.attention import SequenceState
from lengthen.models.binding import sequence_start
from lengthen.models.generation import StateCache
from lengthen.models.hooked_layers import hooked
from lengthen.models.hooks import Hook
from lengthen.models.tiny_models import TINY_MODELS, build_tiny_model
from tests.conftest import library_cache, tiny_mamba2

IDS = torch.randint(3, 64, (3, 12), generator=torch.Generator().manual_seed(0))


def hybrid():
    return build_tiny_model(next(tiny for tiny in TINY_MODELS if tiny.title == "Bamba"))


def test_a_state_is_taken_as_it_is_and_none_is_none():
    cache = StateCache(sequence_start(wrap(tiny_mamba2()), 3), 12)
    assert StateCache.of(cache) is cache and StateCache.of(None) is None
    assert cache.get_seq_length() == cache.get_seq_length(1) == 12


@pytest.mark.parametrize("build", [tiny_mamba2, hybrid])
def test_a_library_s_cache_is_taken_only_before_it_is_filled(build):
    model = build()
    empty = DynamicCache(config=model.config)
    assert StateCache.of(empty) is None and StateCache.of(DynamicCache()) is None
    filled = library_cache(model(IDS, use_cache=True))
    with pytest.raises(TypeError, match=r"that the library filled was given, .* start from the first token"):
        StateCache.of(filled)


@torch.no_grad()
@pytest.mark.parametrize("build", [tiny_mamba2, hybrid])
def test_rows_follow_the_beams(build):
    """What goes on from the reordered cache is what the beams' own texts go on from."""
    model, beams = wrap(build()), torch.tensor([2, 2, 0])
    state = model(IDS, initial_state=sequence_start(model, 3)).final_state
    cache = StateCache(state, 12)
    cache.reorder_cache(beams)
    assert type(cache.state) is type(state) and cache.positions == 12
    next_ids = IDS[:, :1]
    found = model(next_ids, initial_state=cache.state).logits
    whole = model(torch.cat([IDS[beams], next_ids], 1), initial_state=sequence_start(model, 3)).logits[:, -1:]
    assert relative_error(found, whole) < 1e-5
    assert isinstance(state, SequenceState) == (build is hybrid)


@torch.no_grad()
def test_a_step_under_a_hook_counts_the_positions_behind_it():
    model = wrap(tiny_mamba2())
    with hooked(model, Hook()):
        one = model(IDS[:, :7], use_cache=True)["cache"]
        two = model(IDS[:, 7:8], cache=one, use_cache=True)["cache"]
    assert isinstance(two, StateCache) and (one.positions, two.positions) == (7, 8)
