"""Tokens of a prompt with small steps leave halfway: which, for whom, and that no streamed loss is had under it."""

import numpy as np
import pytest
import torch

from lengthen import stream, wrap
from lengthen.diagnosis.remembrance import effective_remembrance
from lengthen.errors import InputError
from lengthen.models.agreement import relative_error
from lengthen.models.hooked_layers import hooked
from lengthen.models.hooks import Hook
from lengthen.streaming import generate, reset_losses
from lengthen.tasks.shared_prefixes import Cost, final_states
from lengthen.training_free import Calibration, method_of
from lengthen.training_free.token_selection import largest_steps
from tests.models.family_properties import builder
from tests.training_free.small_models import IDS, TEXT, logits, recurrent_tensors, small_model


def fitted(model, text="deci-mamba:base=10"):
    return method_of(text).fit(model)


def test_the_largest_steps_by_hand():
    """Norms 5, 1, 3, 4, 2 and a padded 9: two go on, the last real token and the largest; of three also the 4."""
    step = torch.tensor([[3.0, 4.0], [1, 0], [0, 3], [4, 0], [2, 0], [9, 0]])[None]
    real = torch.tensor([[True] * 5 + [False]])
    assert largest_steps(step, real, 2).nonzero()[:, 1].tolist() == [0, 4]
    assert largest_steps(step, real, 3).nonzero()[:, 1].tolist() == [0, 3, 4]
    assert torch.equal(largest_steps(step, real, 9), real)


@torch.no_grad()
def test_counts_by_hand():
    """Of 2 layers the second is halfway; T0 = 32 tokens go on there, and from a first layer 32, then half of them."""
    model = small_model("Mamba2")
    context = Calibration(train_context=32)
    assert method_of("deci-mamba").fit(model, context).tensors == {"backbone.layers.1.mixer": 32}
    both = method_of("deci-mamba:first=0,layers=2").fit(model, context)
    assert both.tensors == {"backbone.layers.0.mixer": 32, "backbone.layers.1.mixer": 16}
    assert (both.tokens_read, both.forwards) == (0, 0)


@torch.no_grad()
@pytest.mark.parametrize("name", ["Mamba", "Mamba2"])
def test_the_last_layer_s_state_is_that_of_the_chosen_tokens_alone(name):
    """Those with the largest steps, found apart; what was not chosen leaves no trace in the later layer's state."""
    model = small_model(name)
    layers = [f"backbone.layers.{i}.mixer" for i in range(2)]
    steps = {}

    class Watch(Hook):
        def gates(self, view, log_decay, gain):
            steps[view.layer] = view.step
            return log_decay, gain

    with hooked(model, Watch()):
        model(IDS)
    chosen = largest_steps(steps[layers[0]], torch.ones_like(IDS, dtype=torch.bool), 10)
    inputs = []
    handle = model.backbone.layers[1].mixer.register_forward_hook(lambda _, args, y: inputs.append((args[0], y)))
    with fitted(model, "deci-mamba:first=0,base=10").apply(model):
        found = model(IDS).final_state
    handle.remove()
    x, y = inputs[0]
    assert torch.equal(y.abs().sum(-1) > 0, chosen) and chosen.sum(1).tolist() == [10, 10]
    for row in range(2):
        expected = model.backbone.layers[1].mixer(x[row : row + 1, chosen[row]])
        assert relative_error(y[row, chosen[row]], expected[0]) < 1e-5
    assert found.tensors[layers[1]].keys() == {"recurrent", "window"}


@torch.no_grad()
def test_tokens_leave_at_each_of_several_layers():
    """Those that go on from the second are among those that went on from the first, in the rows' own positions."""
    model = wrap(builder("Mamba2", {})(num_hidden_layers=3))
    seen = []
    for block in model.backbone.layers:
        block.mixer.register_forward_hook(lambda _, args, y: seen.append(y.abs().sum(-1) > 0))
    mask = torch.ones_like(IDS)
    mask[0, :5] = 0
    with fitted(model, "deci-mamba:first=0,layers=2,base=12,ratio=0.5").apply(model):
        output = model(IDS, attention_mask=mask)
        _, first, second = seen
        alone = model(IDS[:1, 5:])
    assert first.sum(1).tolist() == [12, 12] and second.sum(1).tolist() == [6, 6]
    assert torch.equal(first & second, second) and not first[:, -6:].all(1).any()
    assert relative_error(logits(output)[0, 5:], logits(alone)[0]) < 1e-5
    for key, value in recurrent_tensors(output.final_state).items():
        assert relative_error(value[:1], recurrent_tensors(alone.final_state)[key]) < 1e-5


@torch.no_grad()
def test_a_prompt_is_thinned_out_once_and_what_follows_is_not():
    """Generating goes on from a thinned-out prompt alike however it is called; a base beyond the prompt changes nothing."""
    model = small_model("Mamba2")
    before = logits(model(IDS))
    plain = {"attention_mask": torch.ones_like(IDS), "max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    with fitted(model).apply(model):
        prompt = model(IDS)
        said, _ = generate(model, IDS, 12, segment=7)
        assert torch.equal(model.generate(IDS, **plain)[:, 38:], said)
        together = logits(model(said, initial_state=prompt.final_state))
        state, apart = prompt.final_state, []
        for token in said.split(1, 1):
            output = model(token, initial_state=state)
            state = output.final_state
            apart.append(logits(output))
        assert relative_error(torch.cat(apart, 1), together) < 1e-5
    assert relative_error(logits(prompt)[:, -1], before[:, -1]) > 1e-3
    assert torch.equal(logits(model(IDS)), before)
    with fitted(model, "deci-mamba:base=38").apply(model):
        assert torch.equal(logits(model(IDS)), before)


@torch.no_grad()
def test_tasks_run_each_prompt_in_one_call():
    model = small_model("Mamba2")
    rows = [IDS[0, :30].numpy(), np.concatenate([IDS[0, :20].numpy(), IDS[1, :9].numpy()]), IDS[1, :0].numpy()]
    cost = Cost()
    with fitted(model).apply(model):
        found = {m: s for members, s in final_states(model, rows, cost, segment=4) for m in members}
        for i in (0, 1):
            expected = model(torch.from_numpy(rows[i])[None]).final_state
            for key, value in recurrent_tensors(expected).items():
                assert torch.equal(recurrent_tensors(found[i])[key], value)
    assert cost == Cost(59, 59) and not any(t.any() for t in recurrent_tensors(found[2]).values())


def test_refusals():
    model = small_model("Mamba2")
    with fitted(model).apply(model):
        for run in (
            lambda: next(stream(model, TEXT)),
            lambda: next(reset_losses(model, TEXT, 8)),
            lambda: effective_remembrance(model, TEXT, ends=[8], starts=[0]),
        ):
            with pytest.raises(InputError, match="deci-mamba must see the whole prompt before its first token is run"):
                run()
    with pytest.raises(InputError, match=r"deci-mamba changes the step size, .* has none"):
        fitted(small_model("RecurrentGemma"))
    with pytest.raises(InputError, match="deci-mamba needs the training context"):
        fitted(model, "deci-mamba")
    with pytest.raises(InputError, match="at 2 recurrent layers from number 1 on, but the model has 2; give a smaller"):
        fitted(model, "deci-mamba:base=10,layers=2")
    assert "prompt" in method_of("deci-mamba").needs
    for setting, sentence in (
        ("first=-1", "The setting first of deci-mamba is -1; give a whole number, at least 0."),
        ("layers=1.5", "The setting layers of deci-mamba is 1.5; give a whole number, at least 1."),
        ("base=0", "The setting base of deci-mamba is 0; give a whole number"),
        ("ratio=0", "The ratio of deci-mamba is 0; give a number above 0, at most 1."),
    ):
        with pytest.raises(InputError, match=sentence):
            method_of(f"deci-mamba:{setting}")
