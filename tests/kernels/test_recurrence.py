"""What the elementwise recurrences share: how a sequence is cut, the scan of one chunk, and what is said of wrong arguments."""

import pytest
import torch
from torch import Tensor

from lengthen.kernels.recurrence import (
    CHUNK,
    check_floating,
    check_sequence,
    check_shape,
    chunks,
    compute_dtype,
    empty_gradients,
    fresh_like,
    matrix_outputs,
    needs_gradient,
    scan_chunk,
    scan_chunk_backward,
    slabs,
    split_decay,
    time_first,
)
from tests.kernels.recurrence_comparison import errors


def one_by_one(log_decay: Tensor, write: Tensor, state: Tensor) -> Tensor:
    states = []
    for g, u in zip(log_decay.unbind(0), write.unbind(0)):
        state = g.exp() * state + u
        states.append(state)
    return torch.stack(states)


def make(positions: int, decay_shape: tuple[int, ...], size: float) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(positions)
    log_decay = -size * torch.rand(positions, *decay_shape, generator=g)
    log_decay[positions // 2] = -torch.inf
    return log_decay, torch.randn(positions, 2, 3, generator=g), torch.randn(2, 3, generator=g)


@pytest.mark.parametrize("positions", [1, 2, 37, CHUNK])
@pytest.mark.parametrize("decay_shape", [(2, 3), (2, 1), (1, 1)])
@pytest.mark.parametrize("size", [1e-7, 1.0, 2000.0])
def test_a_chunk_is_the_recurrence_one_by_one_forward_and_backward(
    positions: int, decay_shape: tuple[int, ...], size: float
) -> None:
    log_decay, write, state = make(positions, decay_shape, size)
    start = state.double().requires_grad_()
    expected = one_by_one(log_decay.double(), write.double(), start)
    torch.testing.assert_close(scan_chunk(log_decay, write, state), expected.float(), rtol=1e-5, atol=1e-6)

    _, own, after = make(positions + 1, decay_shape, size)
    own = own[1:]
    leaf = write.double().requires_grad_()  # what reaches a write is what reaches the state it makes
    states = one_by_one(log_decay.double(), leaf, start)
    total = (own.double() * states).sum() + (after.double() * states[-1]).sum()
    wanted = torch.autograd.grad(total, (leaf, start))
    for found, gradient in zip(scan_chunk_backward(log_decay, own, after), wanted):
        torch.testing.assert_close(found, gradient.float(), rtol=1e-5, atol=1e-6)


def test_a_decay_very_near_one_loses_no_digits_over_many_chunks() -> None:
    log_decay, state = torch.full((CHUNK, 1), -1e-7), torch.ones(1)
    for _ in range(100):
        state = scan_chunk(log_decay, torch.zeros(CHUNK, 1), state)[-1]
    lost = torch.tensor(-1e-7).double().mul(100 * CHUNK).expm1()
    assert (state.double() - 1).item() == pytest.approx(lost.item(), rel=1e-2)


def test_a_split_decay_is_the_decay_and_keeps_what_float32_could_not() -> None:
    log_decay = -torch.logspace(-9, 2, 200)
    kept, changed = split_decay(log_decay)
    assert set(kept.tolist()) == {0.0, 1.0} and kept.dtype == changed.dtype == torch.float32
    assert max(errors(kept + changed, log_decay.double().exp())) < 1e-6
    slow = kept == 1
    relative = changed[slow].double() / log_decay[slow].double().expm1() - 1
    assert relative.abs().max() < 1e-6
    ends = split_decay(torch.tensor([0.0, -torch.inf]))
    assert [part.tolist() for part in ends] == [[1.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("positions", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
def test_chunks_are_full_but_for_the_last_and_miss_no_position(positions: int) -> None:
    cut = chunks(positions)
    assert [i for piece in cut for i in range(positions)[piece]] == list(range(positions))
    assert {piece.stop - piece.start for piece in cut[:-1]} <= {CHUNK} and cut[-1].stop == positions
    assert len(cut) == -(-positions // CHUNK)


@pytest.mark.parametrize(("batch", "elements"), [(1, 1), (7, 4096), (7, 5000), (3, 2**21), (5, 1)])
def test_slabs_miss_no_row_and_hold_8_mb_or_a_single_row(batch: int, elements: int) -> None:
    cut = slabs(batch, elements)
    assert [row for slab in cut for row in range(batch)[slab]] == list(range(batch))
    for slab in cut:
        rows = slab.stop - slab.start
        assert rows == 1 or 4 * rows * CHUNK * elements <= 2**23


def test_outputs_are_contiguous_whatever_the_inputs_are_and_empty_for_those_left_out() -> None:
    strided, half = torch.zeros(4, 6, 5).transpose(0, 2), torch.zeros(3, 2, dtype=torch.bfloat16)
    first, missing, last = empty_gradients(strided, None, half)
    assert first.shape == strided.shape and first.is_contiguous() and missing.shape == (0,)
    assert last.shape == half.shape and last.dtype == torch.bfloat16
    for shape in ((7, 1), ()):
        assert fresh_like(half, shape=shape, dtype=torch.float64).shape == shape
    assert fresh_like(half, shape=(2,), dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize("rows", [3, 2**20 + 1])
def test_a_fresh_output_is_contiguous_and_shares_no_memory_with_another(rows: int) -> None:
    like = torch.zeros(2, rows).t()
    first, second = fresh_like(like), fresh_like(like)
    assert first.shape == (rows, 2) and first.is_contiguous()
    first.fill_(1)
    second.fill_(2)
    assert (first == 1).all() and (second == 2).all()


@pytest.mark.parametrize(("save", "kept"), [(True, 3), (False, 0)])
def test_matrix_states_are_kept_before_each_chunk_if_at_all(save: bool, kept: int) -> None:
    key, value = torch.zeros(2, 2 * CHUNK + 1, 4, 3), torch.zeros(2, 2 * CHUNK + 1, 4, 5, dtype=torch.bfloat16)
    output, final_state, checkpoints = matrix_outputs(key, value, torch.float32, save)
    assert output.shape == value.shape and output.dtype == torch.bfloat16
    assert final_state.shape == (2, 4, 3, 5) and checkpoints.shape == (2, kept, 12, 5)
    assert final_state.dtype == checkpoints.dtype == torch.float32


def test_time_comes_first_of_the_rows_and_positions_asked_for() -> None:
    tensor = torch.arange(24.0).view(3, 4, 2)
    found = time_first(tensor, slice(1, 3), slice(2, 4), torch.float64)
    assert found.dtype == torch.float64 and torch.equal(found, tensor[1:3, 2:4].transpose(0, 1).double())


def test_states_are_float64_as_soon_as_one_tensor_is_and_else_float32() -> None:
    half, double = torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.float64)
    assert compute_dtype(half, None) == torch.float32 and compute_dtype(half, None, double) == torch.float64


def test_checkpoints_are_wanted_only_where_a_backward_pass_may_follow() -> None:
    leaf = torch.zeros(1, requires_grad=True)
    assert needs_gradient(None, leaf) and not needs_gradient(None, leaf.detach())
    with torch.no_grad():
        assert not needs_gradient(leaf)


def test_what_does_not_fit_is_named_in_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"^skip has shape \[3\], but the other arguments need \[4\]$"):
        check_shape("skip", torch.zeros(3), (4,))
    with pytest.raises(ValueError, match=r"^x has shape \[3\], but needs the axes \[B, T, D\]$"):
        check_sequence("x", torch.zeros(3), "B T D")
    with pytest.raises(ValueError, match=r"^x has no positions: pass at least one, or keep the state you have$"):
        check_sequence("x", torch.zeros(3, 0, 2), "B T D")
    with pytest.raises(TypeError, match=r"^key is torch\.int64, but needs a floating-point type$"):
        check_floating(query=torch.zeros(1), key=torch.zeros(1, dtype=torch.int64), bonus=None)
    check_shape("skip", None, (4,))
