"""State patching names the layer and head that a loss comes from: here one that was spoilt by hand."""

import pytest
import torch

from lengthen import stream
from lengthen.diagnosis.patching import state_patching
from lengthen.errors import InputError
from lengthen.models import SequenceState, wrap
from lengthen.models.tiny_models import TINY_MODELS, build_tiny_model
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
        noise.select(spec.head_axis, head).normal_(generator=torch.Generator().manual_seed(0))
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
