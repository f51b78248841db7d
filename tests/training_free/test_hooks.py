"""A hook acts alike in one run, in segments and token by token, in every family, and leaves nothing behind."""

import copy

import pytest
import torch

from lengthen import stream, wrap, zero_state
from lengthen.errors import InputError
from lengthen.models import weights_fingerprint
from lengthen.models.agreement import relative_error
from lengthen.models.call import Marks
from lengthen.models.hooked_layers import hooked
from lengthen.models.hooks import Hook
from lengthen.models.mamba2 import forward as mamba2_forward
from lengthen.streaming import generate
from tests.training_free.small_models import (
    EVERY,
    GATED,
    IDS,
    READ,
    TEXT,
    Recurrent,
    logits,
    recurrent_tensors,
    small_model,
)


class Forgetful(Hook):
    """Uses every verb that all gated families know: gates that change with a counted position, and states cut down."""

    name, period = "forgetful", 5
    uses = frozenset({"decay", "gain"})

    def memory(self, layer, zero):
        return {"read": next(iter(zero.values())).new_zeros(len(next(iter(zero.values()))))}

    def gates(self, view, log_decay, gain):
        position = view.memory["read"][:, None] + torch.arange(log_decay.shape[1])
        view.memory["read"] = view.memory["read"] + log_decay.shape[1]
        growth = 1 + position / 50
        return tuple(t * growth.view(*growth.shape, *[1] * (t.dim() - 2)) for t in (log_decay, gain))

    def between(self, view, state):
        return {name: t * 0.5 if view.specs[name].kind == "recurrent" else t for name, t in state.items()}


class Skip(Hook):
    """Skips every token from a position of the call on."""

    name, uses = "skip", frozenset({"decay", "gain"})

    def __init__(self, start):
        self.start = start

    def gates(self, view, log_decay, gain):
        return tuple(t.index_fill(1, torch.arange(self.start, t.shape[1]), 0) for t in (log_decay, gain))


class Halving(Forgetful):
    """What is left of it where a layer has no gates: states cut down."""

    name, uses = "halving", frozenset()
    memory, gates = Hook.memory, Hook.gates


def run_state(model):
    *_, last = stream(model, TEXT)
    return last.final_state


def run(model, tokens=TEXT, **options):
    return torch.cat([part.losses for part in stream(model, tokens, **options)], 1)


@torch.no_grad()
@pytest.mark.parametrize("name", EVERY)
def test_the_identity_is_bit_equal_to_no_hook(name):
    model = small_model(name)
    mask = torch.ones_like(IDS)
    mask[0, 30:] = 0
    for options in ({}, {"attention_mask": mask}):
        plain = model(IDS, **options)
        with hooked(model, Hook()):
            found = model(IDS, **options)
        assert torch.equal(logits(found), logits(plain))
        for layer, named in plain.final_state.tensors.items():
            for tensor, value in named.items():
                assert torch.equal(found.final_state.tensors[layer][tensor], value), (layer, tensor)


@torch.no_grad()
@pytest.mark.parametrize("name", EVERY)
def test_segments_equal_one_run_and_nothing_stays(name):
    model = small_model(name)
    hook = Forgetful() if name in GATED else Halving()
    text = TEXT[:, :20]
    before, weights = run(model, text), weights_fingerprint(model)
    with hooked(model, hook):
        whole = run(model, text)
        for segment in (1, 7):
            assert relative_error(run(model, text, segment=segment), whole) < 1e-5, segment
    assert relative_error(whole, before) > 1e-3
    assert torch.equal(run(model, text), before) and weights_fingerprint(model) == weights
    with pytest.raises(ZeroDivisionError), hooked(model, hook):
        raise ZeroDivisionError
    assert torch.equal(run(model, text), before)


@torch.no_grad()
@pytest.mark.parametrize("name", ["Mamba", "Mamba2", "Bamba", "GLA"])
def test_generate_runs_under_the_hook(name):
    """Also where the library's own cache carries the model otherwise."""
    model = small_model(name)
    prompt = {"input_ids": IDS[:, :12], "attention_mask": torch.ones_like(IDS[:, :12])}
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    options |= {"output_logits": True, "return_dict_in_generate": True}
    with hooked(model, Forgetful()):
        made = model.generate(**prompt, **options)
        expected = logits(model(made.sequences))[:, 11:-1]
        assert torch.equal(generate(model, IDS[:, :12], 6)[0], made.sequences[:, 12:])
        if hasattr(model, "backbone"):
            with pytest.raises(InputError, match="outside the wrapped model's forward"):
                model.backbone(IDS)
    assert relative_error(torch.stack(made.logits, 1), expected) < 1e-5
    assert relative_error(logits(model(made.sequences))[:, 11:-1], expected) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("name", GATED)
def test_a_skipped_token_leaves_the_state_bit_equal(name):
    model = small_model(name)
    start = model(IDS[:, :10]).final_state
    with hooked(model, Skip(0)):
        found = model(IDS[:, 10:], initial_state=start).final_state
    for key, value in recurrent_tensors(found).items():
        before = recurrent_tensors(start)[key]
        if name == "RetNet":  # seen from 28 positions on, the same state is turned
            assert not torch.equal(value, before) and relative_error(value.norm(dim=-2), before.norm(dim=-2)) < 0.5
        else:
            assert torch.equal(value, before), key


@torch.no_grad()
@pytest.mark.parametrize("name", GATED)
def test_what_a_skipped_token_was_leaves_no_trace(name):
    """In the first layer, whose tokens before the skipped ones are the same."""
    model = small_model(name)
    other = torch.cat([IDS[:, :15], IDS[:, 15:].flip(1)], 1)
    with hooked(model, Skip(15)):
        states = [recurrent_tensors(model(ids).final_state) for ids in (IDS, other)]
    first = next(layer for layer, _ in states[0])
    for key in states[0]:
        if key[0] == first:
            assert torch.equal(states[0][key], states[1][key])


@torch.no_grad()
def test_tokens_that_leave_are_never_seen_by_later_layers():
    model = small_model("Mamba2")
    mixers = [block.mixer for block in model.backbone.layers]
    left = torch.rand(2, 38, generator=torch.Generator().manual_seed(0)) < 0.4

    class Leave(Skip):
        def gates(self, view, log_decay, gain):
            if view.layer.endswith("0.mixer"):
                view.leave(left)
            return log_decay, gain

    inputs = []
    handle = mixers[1].register_forward_hook(lambda _, args, y: inputs.append((args[0], y)))
    with hooked(model, Leave(0)):
        state = model(IDS).final_state
    handle.remove()
    x, y = inputs[0]
    assert not y[left].any() and y[~left].abs().min(-1).values.max() > 0
    for row in range(2):
        expected, final = mamba2_forward(mixers[1], x[row : row + 1, ~left[row]], None, Marks())
        assert relative_error(y[row, ~left[row]], expected[0]) < 1e-6
        for name, value in final.items():
            assert relative_error(state.tensors["backbone.layers.1.mixer"][name][row], value[0]) < 1e-6


@torch.no_grad()
@pytest.mark.parametrize("name", ["Mamba2", "GLA"])
def test_padding_counts_no_position_and_packed_rows_count_their_own(name):
    model = small_model(name)
    with hooked(model, Halving()):
        alone = logits(model(IDS[:, :13]))
        mask = torch.ones(2, 20, dtype=torch.long)
        mask[:, :7] = 0
        padded = model(torch.cat([IDS[:, :7], IDS[:, :13]], 1), attention_mask=mask)
        assert relative_error(logits(padded)[:, 7:], alone) < 1e-5
        on = logits(model(IDS[:, 13:30], initial_state=padded.final_state))
        assert relative_error(on, logits(model(IDS[:, :30]))[:, 13:]) < 1e-5
        reset = torch.zeros(2, 21, dtype=torch.bool)
        reset[:, 8] = True
        packed = logits(model(torch.cat([IDS[:, 30:], IDS[:, :13]], 1), reset=reset))
        assert relative_error(packed[:, 8:], alone) < 1e-5


@torch.no_grad()
def test_what_a_sequence_starts_from_is_not_cut_down():
    """A period ends after its last token, not before the first."""
    model = small_model("Mamba2")
    start = zero_state(model, 2).map(lambda t, _: torch.ones_like(t))
    expected = logits(model(IDS[:, :5], initial_state=start))
    with hooked(model, Halving()):
        start = zero_state(model, 2).map(lambda t, _: torch.ones_like(t) if t.is_floating_point() else t)
        assert relative_error(logits(model(IDS[:, :5], initial_state=start)), expected) < 1e-6


@torch.no_grad()
def test_memory_starts_anew_at_the_start_of_a_packed_row():
    model = small_model("Mamba2")
    reset = torch.zeros(2, 25, dtype=torch.bool)
    reset[0, 8] = True
    with hooked(model, Forgetful()):
        alone = logits(model(IDS[:, :17]))
        packed = logits(model(torch.cat([IDS[:, 30:], IDS[:, :17]], 1), reset=reset))
    assert relative_error(packed[0, 8:], alone[0]) < 1e-5 and relative_error(packed[1, 8:], alone[1]) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("name", READ)
def test_a_hook_takes_over_the_read(name):
    """Reads two recurrences with a share of the values each, one of them carried in the hook's memory: reads are linear."""

    class Split(Hook):
        name, uses = "split", frozenset({"read"})

        def memory(self, layer, zero):
            width = zero["recurrent"].shape[-1] + ("normaliser" in zero)  # values with a 1 appended sum the keys
            return {"quarter": zero["recurrent"][..., :1].expand(*zero["recurrent"].shape[:-1], width)}

        def read(self, view, kernel, query, key, value, log_decay, gain=None, *, initial_state=None, **options):
            mine = view.memory["quarter"]
            rest = (torch.zeros_like(mine) if initial_state is None else initial_state) - mine
            one, view.memory["quarter"] = kernel(
                query, key, value * 0.25, log_decay, gain, initial_state=mine, **options
            )
            other, rest = kernel(query, key, value * 0.75, log_decay, gain, initial_state=rest, **options)
            return one + other, rest + view.memory["quarter"]

    model = small_model(name)
    expected = run(model)
    with hooked(model, Split()):
        for segment in (None, 10):
            assert relative_error(run(model, segment=segment), expected) < 1e-5
        memory = run_state(model)
    assert any(t.abs().sum() > 0 for named in memory.tensors.values() for n, t in named.items() if n == "hook.quarter")


@pytest.mark.parametrize("name", ["Mamba", "Mamba2"])
def test_gradients_reach_what_a_hook_scales_by(name):
    class Scaling(Hook):
        name, uses = "scaling", frozenset({"decay", "gain"})

        def gates(self, view, log_decay, gain):
            return log_decay * scale, gain * scale

    model = small_model(name).double()

    def loss():
        with hooked(model, Scaling()):
            return model(IDS, labels=IDS).loss

    scale = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    loss().backward()
    found = scale.grad.clone()
    with torch.no_grad():
        values = []
        for scale in (torch.tensor(0.8 + d, dtype=torch.float64) for d in (1e-2, -1e-2)):  # noqa: B007
            values.append(loss())
    assert found == pytest.approx(float(values[0] - values[1]) / 2e-2, rel=2e-3)  # the library norms in float32


def test_refusals():
    model = small_model("GRU")
    with pytest.raises(InputError, match=r"forgetful changes the decay of each token, but mix \(GRU\) has none"):
        hooked(model, Forgetful()).__enter__()
    with pytest.raises(InputError, match=r"changes the gain on what a token writes, but rwkv\.blocks\.0\.attention"):
        hooked(small_model("Rwkv"), Forgetful()).__enter__()
    with hooked(model, Hook()), pytest.raises(InputError, match="runs under identity already"):
        hooked(model, Halving()).__enter__()
    with pytest.raises(InputError, match="is not wrapped"):
        hooked(torch.nn.Linear(2, 2), Hook()).__enter__()
    first = torch.nn.LSTM(16, 16)
    plain = Recurrent(torch.nn.LSTM)
    plain.mix = first
    with pytest.raises(InputError, match="batch_first=True"):
        hooked(wrap(plain), Hook()).__enter__()
    state = model(IDS).final_state
    with hooked(model, Halving()), pytest.raises(InputError, match="is of another model"):
        model(IDS, initial_state=state)


@torch.no_grad()
def test_a_copy_of_a_hooked_model_runs_under_the_hook_too():
    model = small_model("Mamba2")
    with hooked(model, Forgetful()):
        expected, twin = run(model), copy.deepcopy(model)
    assert torch.equal(run(twin), expected)
