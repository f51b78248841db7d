"""A model's layers under a hook: which they are, whose hook is on, and where a period ends, by hand on plain sums."""

import pytest
import torch
from torch import nn

from lengthen import unwrap, wrap
from lengthen.errors import InputError
from lengthen.models.binding import wrapped_layers
from lengthen.models.hooked_layers import (
    chunking_hook,
    hookable_layers,
    hooked,
    hooks_replaced,
    require_no_chunks,
    require_quantities,
    whole_prompt_hook,
)
from lengthen.models.hooks import Hook
from tests.conftest import tiny_mamba2
from tests.models.family_properties import IDS, builder
from tests.models.plain_models import Regressor


class Sums(nn.Module):
    """Everything read so far, times a weight and summed."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def zero_state(self, rows, device, dtype):
        return {"sum": torch.zeros(rows, 1, device=device, dtype=dtype)}

    def scan(self, x, state):
        y = state["sum"][:, None] + (self.weight * x).cumsum(1)
        return y, {"sum": y[:, -1]}

    def forward(self, x):
        return (self.weight * x).cumsum(1)


class Anew(Hook):
    """Begins from zero after every fourth token, and counts how often it did."""

    name, period = "anew", 4

    def memory(self, layer, zero):
        return {"times": torch.zeros(len(next(iter(zero.values()))))}

    def between(self, view, state):
        view.memory["times"] = view.memory["times"] + 1
        return {name: torch.zeros_like(t) for name, t in state.items()}


class Named(Hook):
    def __init__(self, name, **options):
        self.name = name
        vars(self).update(options)


@pytest.fixture
def sums():
    return wrap(nn.Sequential(Sums()))


def ones(rows, positions):
    return torch.ones(rows, positions, 1)


def hooks_of(model):
    return [binding.hook for binding, _ in wrapped_layers(model)]


def times(output):
    return output.final_state.tensors["0"]["hook.times"].tolist()


# -- on and off ---------------------------------------------------------------------------------------------------


def test_layers_with_a_window_alone_cannot_be_hooked():
    model = wrap(builder("Rwkv", {})())
    assert [b.name for b, _ in hookable_layers(model)] == [f"rwkv.blocks.{i}.attention" for i in (0, 1, 2)]
    assert len(list(wrapped_layers(model))) == 6
    with pytest.raises(InputError, match=r"^RwkvForCausalLM is not wrapped; call lengthen\.wrap"):
        hookable_layers(unwrap(model))


def test_a_hook_is_on_every_layer_for_a_while_also_where_it_ends_in_an_error():
    model, one, two = wrap(tiny_mamba2()), Named("one"), Named("two")
    with hooked(model, one):
        assert hooks_of(model) == [one, one]
        with pytest.raises(ZeroDivisionError), hooks_replaced(model, lambda before: two if before is one else None):
            assert hooks_of(model) == [two, two]
            raise ZeroDivisionError
        assert hooks_of(model) == [one, one]
    assert hooks_of(model) == [None, None]


def test_a_replacement_that_fails_half_way_leaves_every_hook_as_it_was():
    model, given = wrap(tiny_mamba2()), []

    def once(before):
        given.append(before)
        return Named("one") if len(given) == 1 else 1 / 0

    with pytest.raises(ZeroDivisionError), hooks_replaced(model, once):
        pass
    assert given == [None, None] and hooks_of(model) == [None, None]


def test_a_model_unwrapped_under_its_hook_stays_so():
    model = wrap(tiny_mamba2())
    with hooked(model, Named("one")):
        unwrap(model)
    assert hooks_of(model) == [] and "forward" not in model.__dict__


def test_what_a_method_needs_and_a_layer_lacks_is_named():
    ((binding, layer),) = wrapped_layers(wrap(Regressor()))
    require_quantities("nothing", frozenset(), binding, layer)
    with pytest.raises(InputError, match=r"^mine changes the step size, .*, but layer \(GRU\) has none; choose"):
        require_quantities("mine", frozenset({"step", "read"}), binding, layer)
    for binding, layer in wrapped_layers(wrap(tiny_mamba2())):
        require_quantities("mine", frozenset({"decay", "gain", "step", "read"}), binding, layer)


def test_hooks_that_need_a_whole_prompt_or_a_question_are_found(sums):
    assert whole_prompt_hook(sums) is None and chunking_hook(sums) is None
    whole, chunked = Named("whole", whole_prompt=True), Named("chunked", chunk=3)
    with hooked(sums, whole):
        assert whole_prompt_hook(sums) is whole and chunking_hook(sums) is None
        require_no_chunks(sums)
    with hooked(sums, chunked):
        assert chunking_hook(sums) is chunked and whole_prompt_hook(sums) is None
        with pytest.raises(InputError, match=r"^chunked needs a question apart from the text that it is about"):
            require_no_chunks(sums)


# -- one layer's call ---------------------------------------------------------------------------------------------


def test_a_period_ends_after_its_last_token_whatever_the_segments(sums):
    expected = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    with hooked(sums, Anew()):
        whole = sums(ones(1, 10))
        assert whole.predictions.flatten().tolist() == expected and times(whole) == [2]
        for cut in (1, 3, 4, 5, 8):
            first = sums(ones(1, cut))
            second = sums(ones(1, 10 - cut), initial_state=first.final_state)
            assert first.predictions.flatten().tolist() + second.predictions.flatten().tolist() == expected
            assert times(second) == [2] and times(first) == [(cut - 1) // 4]
            assert second.final_state.tensors["0"]["hook.positions"].tolist() == [10]


def test_padding_is_not_counted_and_rows_count_for_themselves(sums):
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1], [1, 0, 1, 0, 1, 0]])
    with hooked(sums, Anew()):
        first = sums(ones(3, 6), attention_mask=mask)
        second = sums(ones(3, 2), initial_state=first.final_state)
    real = [row[m.bool()].flatten().tolist() for row, m in zip(first.predictions, mask)]
    assert real == [[1, 2, 3, 4, 1, 2], [1, 2, 3, 4], [1, 2, 3]]
    assert second.predictions[..., 0].tolist() == [[3, 4], [1, 2], [4, 1]] and times(second) == [1, 1, 1]


def test_a_packed_row_counts_from_its_start_and_its_memory_starts_anew(sums):
    reset = torch.zeros(2, 10, dtype=torch.bool)
    reset[0, 5] = True
    with hooked(sums, Anew()):
        found = sums(ones(2, 10), reset=reset)
    assert found.predictions[..., 0].tolist() == [[1, 2, 3, 4, 1, 1, 2, 3, 4, 1], [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]]
    assert times(found) == [1, 2] and found.final_state.tensors["0"]["hook.positions"].tolist() == [5, 10]


@torch.no_grad()
def test_tokens_cannot_leave_packed_rows():
    class Leave(Hook):
        name, uses = "leave", frozenset({"gain"})

        def gates(self, view, log_decay, gain):
            view.leave(torch.zeros(log_decay.shape[:2], dtype=torch.bool))
            return log_decay, gain

    model, reset = wrap(tiny_mamba2()), torch.zeros_like(IDS, dtype=torch.bool)
    expected = model(IDS).logits
    with hooked(model, Leave()):
        assert torch.equal(model(IDS).logits, expected)  # none leaves
        with pytest.raises(InputError, match=r"^leave lets tokens leave, which packed rows cannot; run one sequence"):
            model(IDS, reset=reset)
