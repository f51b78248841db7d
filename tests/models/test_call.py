"""One call of a model: what marks do to decays and gains, which call is under way, and recomputations that belong to one."""

import pytest
import torch
from torch import nn

from lengthen import wrap, zero_state
from lengthen.models.agreement import relative_error
from lengthen.models.call import Call, CheckpointInCall, Marks, current_call, keep_call_in_checkpoints, running
from tests.conftest import checkpoint_activations, tiny_mamba2

IDS = torch.randint(256, (3, 75), generator=torch.Generator().manual_seed(0))
RESET = torch.tensor([[False, True, False, True], [True, False, False, False]])
LENGTHS = torch.tensor([3, 4])
FORGET = float("-inf")


class Doubling:
    """Twice the decay, three times each write, and a kernel's output negated."""

    def gates(self, log_decay, writes, step, rates):
        return (log_decay * (2 if step is None else step), *(3 * write for write in writes))

    def read(self, kernel, *inputs, **options):
        y, state = kernel(*inputs, **options)
        return -y, state


def test_marks_that_mark_nothing_leave_everything_as_it_is():
    x = torch.randn(2, 4, 3)
    assert Marks().real(4) is None and Marks().decay(x) is x and Marks().gain(x) is x
    assert Marks().hooked(x, x)[1] is x and Marks().reading(torch.add) is torch.add


def test_real_positions_come_first():
    found = Marks(lengths=torch.tensor([0, 2, 4])).real(4)
    assert found.tolist() == [[False] * 4, [True, True, False, False], [True] * 4]


@pytest.mark.parametrize("trailing", [(), (2,), (2, 3)])
def test_a_reset_forgets_and_padding_does_nothing_even_where_it_is_reset(trailing):
    log_decay = torch.full((2, 4, *trailing), -1.0)
    found = Marks(RESET, LENGTHS).decay(log_decay)
    expected = torch.tensor([[-1.0, FORGET, -1.0, 0.0], [FORGET, -1.0, -1.0, -1.0]])
    assert torch.equal(found, expected.view(2, 4, *[1] * len(trailing)).expand_as(found))
    assert Marks(RESET).decay(log_decay)[0, 3].eq(FORGET).all() and (log_decay == -1).all()


def test_padding_writes_nothing_even_where_it_is_not_finite():
    gain = torch.ones(2, 4, 3)
    gain[0, 3] = float("nan")
    found = Marks(RESET, LENGTHS).gain(gain)
    assert (found[0, :3] == 1).all() and not found[0, 3].any() and (found[1] == 1).all()
    assert Marks(RESET).gain(gain) is gain


def test_a_hook_changes_decays_writes_and_reads():
    marks, x = Marks(hook=Doubling()), torch.ones(1, 2, 1)
    assert [t[0, 0, 0].item() for t in marks.hooked(x, x, 2 * x)] == [2, 3, 6]
    assert marks.hooked(x, step=5 * x)[0][0, 0, 0] == 5
    y, state = marks.reading(lambda a, b: (a + b, a))(x, x)
    assert (y == -2).all() and state is x


def test_a_layer_starts_from_its_own_part_of_the_state():
    state = zero_state(wrap(tiny_mamba2()), 2).map(lambda t, _: torch.ones_like(t))
    found = Call(state, Marks()).initial("backbone.layers.1.mixer")
    assert found == dict(state.tensors["backbone.layers.1.mixer"])
    found["recurrent"] = torch.zeros(1)
    assert state.tensors["backbone.layers.1.mixer"]["recurrent"].all()
    assert Call(None, Marks()).initial("anything") is None


def test_what_is_recomputed_after_a_call_changes_nothing():
    call, first = Call(None, Marks()), {"h": torch.ones(1)}
    call.collect("layer", first)
    call.finished = True
    call.collect("layer", {"h": torch.zeros(1)})
    call.collect("other", {"h": torch.zeros(1)})
    assert call.final == {"layer": first}


def test_calls_nest_and_end_with_their_block():
    one, two = Call(None, Marks()), Call(None, Marks())
    assert current_call() is None
    with running(one):
        with pytest.raises(ZeroDivisionError), running(two):
            assert current_call() is two
            raise ZeroDivisionError
        assert current_call() is one
    assert current_call() is None


def test_a_checkpointing_function_is_wrapped_once_and_recomputes_in_the_call_it_began_in():
    def late(layer, *args):
        return lambda: layer(*args)

    block, call = nn.Linear(1, 1), Call(None, Marks())
    block._gradient_checkpointing_func = late
    for _ in range(2):
        keep_call_in_checkpoints(nn.Sequential(block, nn.Linear(1, 1)))
    assert block._gradient_checkpointing_func == CheckpointInCall(late)
    with running(call):
        recompute = block._gradient_checkpointing_func(lambda x: (x, current_call()), 7)
    with running(Call(None, Marks())):
        assert recompute() == (7, call) and recompute()[1] is call
    assert block._gradient_checkpointing_func(current_call)() is None


def test_two_checkpointed_segments_in_one_backward_keep_their_own_states():
    """A recomputation must find the call it belongs to, also when another has run since."""

    def gradients(checkpointing):
        model = wrap(tiny_mamba2()).train()
        if checkpointing:
            checkpoint_activations(model)
        first = model(
            input_ids=IDS[:, :40],
            labels=IDS[:, :40],
            initial_state=zero_state(model, 3).map(lambda t, _: torch.ones_like(t)),
        )
        second = model(input_ids=IDS[:, 40:], labels=IDS[:, 40:], initial_state=first.final_state)
        (first.loss + second.loss).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    assert relative_error(gradients(True), gradients(False)) < 1e-6


def test_checkpointing_outside_the_call_is_refused_rather_than_wrong():
    from torch.utils.checkpoint import checkpoint

    model = wrap(tiny_mamba2()).train()
    layer = model.backbone.layers[0]
    original = layer.forward
    layer.forward = lambda *a, **k: checkpoint(original, *a, use_reentrant=False, **k)
    loss = model(input_ids=IDS, labels=IDS, initial_state=zero_state(model, 3)).loss
    with pytest.raises(RuntimeError, match="outside its call"):
        loss.backward()
