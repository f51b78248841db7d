"""State patching names the layer and head that a loss comes from: here one that was spoilt by hand."""

import math

import pytest
import torch

from lengthen import stream
from lengthen.diagnosis.patching import _ranked, state_patching
from lengthen.errors import InputError
from lengthen.models import SequenceState, wrap
from lengthen.models.tiny_models import TINY_MODELS, build_tiny_model
from lengthen.results import Patch
from lengthen.streaming import generate

T, AT = 96, 192


@pytest.fixture(scope="module", params=["Mamba2", "Bamba"])
def judged(request):
    """A model, tokens that it wrote itself (so that it does worse from a spoilt state), and the state carried to AT."""
    model = wrap(build_tiny_model(next(tiny for tiny in TINY_MODELS if tiny.title == request.param)))
    prompt = torch.randint(64, (16, 8), generator=torch.Generator().manual_seed(0))
    written, _ = generate(model, prompt, AT + T - 7)
    tokens = torch.cat([prompt, written], 1).numpy()
    *_, last = stream(model, tokens[:, : AT + 1])
    return model, tokens, last.final_state


def spoilt(state, layer, head):
    """The state with one head's entries far from where they were."""

    def spoil(at, name, t, spec):
        if at != layer or spec.kind == "window":
            return t
        noise = torch.zeros_like(t)
        (noise if spec.head_axis is None else noise.select(spec.head_axis, head)).normal_(
            generator=torch.Generator().manual_seed(0)
        )
        return t + 10 * noise

    changed = state.map_named(spoil)
    return SequenceState(changed, state.attention) if isinstance(state, SequenceState) else changed


@pytest.mark.parametrize("which, head", [(0, 1), (1, 3)])
def test_the_spoilt_layer_and_head_are_named(judged, which, head):
    model, tokens, state = judged
    layer = list(state.tensors)[which]
    done = []
    found = state_patching(model, tokens, T, AT, spoilt(state, layer, head), progress=lambda a, b: done.append((a, b)))
    layers, heads = [p for p in found.patches if p.head is None], [p for p in found.patches if p.head is not None]
    assert (found.position, found.end, found.n) == (AT, AT + T, 16) and found.excess > 5 * found.excess_stderr
    assert layers[0].layer == layer and layers[0].share == pytest.approx(1, abs=0.2) and layers[0].stderr < 0.1
    assert abs(layers[1].share) < 0.2
    assert {p.layer for p in heads} == {layer} and heads[0].head == head and heads[0].share > 0.9 > 0.2 > heads[1].share
    assert done[-1][0] == done[-1][1] == 2 + 2 + 4


def mean_losses(model, tokens, state, segment=None):
    """Mean loss [n] of the T tokens from `state`."""
    pieces = stream(model, tokens[:, AT:], segment=segment, initial_state=state)
    return torch.cat([piece.losses for piece in pieces], 1).double().mean(1)


@pytest.mark.parametrize("judged", ["Mamba2", "Bamba", "Mamba"], indirect=True)
def test_shares_are_of_the_excess_that_a_layer_s_whole_state_removes_and_attention_keeps_what_it_saw(judged):
    """Against runs from states put together here; a head's share leaves its layer's windows where they were."""
    model, tokens, state = judged
    layer = next(iter(state.tensors))
    carried = spoilt(state, layer, 0)
    *_, run = stream(model, tokens[:, AT - T : AT + 1])
    donor = run.final_state

    def replaced(layers, head=None):
        def choose(at, name, t, spec):
            if at not in layers or (head is not None and spec.kind == "window"):
                return t
            if head is None:
                return donor.tensors[at][name]
            mixed = t.clone()
            mixed.select(spec.head_axis, head).copy_(donor.tensors[at][name].select(spec.head_axis, head))
            return mixed

        changed = carried.map_named(choose)
        return SequenceState(changed, state.attention) if isinstance(state, SequenceState) else changed

    base = mean_losses(model, tokens, carried)
    excess = base - mean_losses(model, tokens, replaced(state.tensors))
    done = []
    found = state_patching(model, tokens, T, AT, carried, segment=40, progress=lambda a, b: done.append((a, b)))
    assert found.excess == pytest.approx(float(excess.mean()), rel=1e-4)
    assert found.excess_stderr == pytest.approx(float(excess.std() / 4), rel=1e-4)
    for patch in found.patches:
        removed = base - mean_losses(model, tokens, replaced([patch.layer], patch.head))
        share = float(removed.mean() / excess.mean())
        stderr = float((removed - share * excess).std() / 4 / excess.mean().abs())
        assert patch.share == pytest.approx(share, abs=1e-4) and patch.stderr == pytest.approx(stderr, abs=1e-4)
    assert {patch.layer for patch in found.patches if patch.head is None} == set(state.tensors)
    assert done[-1][0] == done[-1][1] and len({todo for _, todo in done}) == 1


def test_without_excess_no_share_is_a_number_and_nothing_is_warned_of(judged, recwarn):
    model, tokens, _ = judged
    *_, last = stream(model, tokens[:, : T + 1])  # carried from where the donor begins
    found = state_patching(model, tokens[:, : 2 * T + 1], T, T, last.final_state)
    assert found.excess == pytest.approx(0, abs=1e-6)
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


@pytest.mark.parametrize("judged", ["Mamba2"], indirect=True)
def test_where_the_carried_state_does_better_errors_are_still_above_zero(judged):
    model, tokens, state = judged
    tokens = tokens.copy()
    tokens[:, AT - T : AT] = 0  # not what the model wrote: the donor knows nothing else
    found = state_patching(model, tokens, T, AT, state)
    assert found.excess < 0 and all(patch.stderr > 0 for patch in found.patches)


def test_shares_that_are_no_number_come_last():
    ranked = _ranked([Patch("a", None, share, 0.0) for share in (0.1, math.nan, 0.9, 0.5)])
    assert [p.share for p in ranked[:3]] == [0.9, 0.5, 0.1] and math.isnan(ranked[3].share)


@pytest.mark.parametrize("judged", ["Mamba2"], indirect=True)  # attention would go on with what it saw
def test_the_excess_is_that_of_a_run_from_one_training_context_before(judged):
    model, tokens, state = judged
    state = spoilt(state, "backbone.layers.0.mixer", 0)
    found = state_patching(model, tokens, T, AT, state)

    def losses(part, initial=None):
        return torch.cat([piece.losses for piece in stream(model, part, initial_state=initial)], 1)[:, -T:].mean(1)

    excess = losses(tokens[:, AT:], state) - losses(tokens[:, AT - T :])
    assert found.excess == pytest.approx(float(excess.mean()), rel=1e-5)
    assert found.excess_stderr == pytest.approx(float(excess.std() / 4), rel=1e-4)


def test_positions_without_a_training_context_on_either_side_are_refused(judged):
    model, tokens, state = judged
    for position in (T - 1, AT + 1):
        with pytest.raises(InputError, match=f"patched at {position}"):
            state_patching(model, tokens, T, position, state)
