"""A recurrence in pieces: cut at resets and where rows end, and nowhere else."""

import pytest
import torch

from lengthen.errors import InputError
from lengthen.models.call import Marks
from lengthen.models.pieces import run_in_pieces

X = torch.randn(3, 12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
ZERO = {"sum": torch.zeros(3, 4, dtype=torch.float64), "count": torch.zeros(3, dtype=torch.float64)}


def leaky(x, state, cuts=None):
    """A leaky sum of its inputs, and how many it has read."""
    if cuts is not None:
        cuts.append(x.shape[1])
    h, made = state["sum"], []
    for t in range(x.shape[1]):
        h = 0.9 * h + x[:, t]
        made.append(h)
    return torch.stack(made, 1), {"sum": h, "count": state["count"] + x.shape[1]}


def marks(reset=(), lengths=None):
    where = torch.zeros(3, 12, dtype=torch.bool)
    for row, t in reset:
        where[row, t] = True
    return Marks(reset=where if reset else None, lengths=None if lengths is None else torch.tensor(lengths))


def test_without_marks_it_is_one_call():
    cuts = []
    y, end = run_in_pieces(lambda x, state: leaky(x, state, cuts), X, ZERO, Marks())
    expected, state = leaky(X, ZERO)
    assert cuts == [12] and torch.equal(y, expected) and torch.equal(end["sum"], state["sum"])


def test_a_reset_row_goes_on_from_zero_and_the_others_go_on():
    cuts = []
    y, end = run_in_pieces(lambda x, s: leaky(x, s, cuts), X, ZERO, marks([(0, 5), (2, 5), (1, 9)]))
    assert cuts == [5, 4, 3]
    assert torch.allclose(y[0, 5:], leaky(X[:1, 5:], {"sum": ZERO["sum"][:1], "count": ZERO["count"][:1]})[0][0])
    assert torch.allclose(y[1, :9], leaky(X, ZERO)[0][1, :9])
    assert end["count"].tolist() == [7, 3, 7]


def test_a_state_stays_bit_for_bit_from_its_row_s_last_position_on():
    y, end = run_in_pieces(leaky, X, ZERO, marks(lengths=[12, 4, 0]))
    assert end["count"].tolist() == [12, 4, 0]
    assert torch.equal(end["sum"][1], leaky(X[:, :4], ZERO)[1]["sum"][1]) and torch.equal(end["sum"][2], ZERO["sum"][2])
    assert y.shape == X.shape


def test_a_reset_in_the_first_position_drops_the_state_given():
    state = {"sum": torch.ones(3, 4, dtype=torch.float64), "count": torch.full((3,), 5.0, dtype=torch.float64)}
    _, end = run_in_pieces(leaky, X, state, marks([(1, 0)]))
    assert end["count"].tolist() == [17, 12, 17]
    assert torch.equal(state["sum"], torch.ones(3, 4, dtype=torch.float64))  # what was given is left alone


@pytest.mark.parametrize(
    ("x", "given", "known"),
    [(X[:2], Marks(), "the model has 3 rows;"), (X[:, :7], marks([(0, 2)]), "the model has 3 rows of 12;")],
)
def test_rows_and_positions_that_are_not_the_call_s_are_refused(x, given, known):
    with pytest.raises(InputError, match=known):
        run_in_pieces(leaky, x, ZERO, given)
