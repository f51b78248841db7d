"""torch's LSTM, GRU and RNN inside any module: torch's own numbers, a state in and out, and refusals in a sentence."""

import copy
import itertools
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from lengthen import check, unwrap, wrap, zero_state
from lengthen.errors import InputError
from lengthen.models import ModuleOutput, is_wrapped
from lengthen.models.agreement import relative_error
from tests.models.plain_models import KINDS, Regressor, Using, frames

X = frames(3, 40)


@pytest.fixture(params=list(KINDS))
def build(request):
    return lambda **more: Regressor(**KINDS[request.param], **more).eval()


def ends_of(model, hx):
    """What torch's layer ended with, as wrap() lays it out: [B, layers, size]."""
    hx = hx if isinstance(hx, tuple) else (hx,)
    return dict(zip(("hidden", "cell"), (t.transpose(0, 1) for t in hx)))


@torch.no_grad()
def test_predictions_and_final_state_equal_torch_s_bit_for_bit(build):
    model = build()
    expected, (_, end) = model(X), model.hidden(X)
    output = wrap(model)(X)
    assert isinstance(output, ModuleOutput) and output.returned is output.predictions
    assert torch.equal(output.predictions, expected)
    found = output.final_state.tensors["layer"]
    assert found.keys() == ends_of(model, end).keys()
    assert all(torch.equal(found[name], t) for name, t in ends_of(model, end).items())


@torch.no_grad()
def test_a_row_ends_where_torch_s_packed_sequence_ends(build):
    model = build()
    lengths = torch.tensor([40, 7, 23])
    mask = (torch.arange(40) < lengths[:, None]).long()
    packed = pack_padded_sequence(model.before(X), lengths, batch_first=True, enforce_sorted=False)
    model.layer.batch_first = True  # a packed sequence has no such axis
    _, end = model.layer(packed)
    model = build()
    expected = model(X)
    output = wrap(model)(X, attention_mask=mask)
    assert relative_error(output.predictions[mask.bool()], expected[mask.bool()]) < 1e-6
    for name, t in ends_of(model, end).items():
        assert relative_error(output.final_state.tensors["layer"][name], t) < 1e-6


@torch.no_grad()
def test_a_reset_row_is_a_sequence_of_its_own(build):
    model = build()
    parts = {0: [0, 13, 14, 40], 1: [0, 40], 2: [0, 29, 40]}
    expected = [torch.cat([model(X[r : r + 1, a:b]) for a, b in itertools.pairwise(e)], 1) for r, e in parts.items()]
    reset = torch.zeros(3, 40, dtype=torch.bool)
    for row, edges in parts.items():
        reset[row, edges[1:-1]] = True
    assert relative_error(wrap(model)(X, reset=reset).predictions, torch.cat(expected)) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_passes_the_parity_gate(build, dtype):
    result = check(build().to(dtype), inputs=X)
    assert result.passed, [c for c in result.checks if not c.passed]
    wanted = {"segments", "gradient-into-state", "gradient-through-state", "train-mode", "left-padding", "packing"}
    assert wanted <= {c.name for c in result.checks} and result.family == "classic"


def test_dropout_between_layers_stays_in_training():
    model = wrap(Regressor("GRU", num_layers=2, dropout=0.5))
    assert not torch.equal(model(X).predictions, model(X).predictions)
    model.eval()
    assert torch.equal(model(X).predictions, model(X).predictions)


@torch.no_grad()
def test_statistics_are_told_per_stacked_layer():
    found = wrap(Regressor("LSTM", num_layers=3))(X).final_state.statistics()["layer"]
    assert found["hidden"]["std"].shape == found["cell"]["std"].shape == (3, 3)


def test_unwrapped_again_it_is_the_module_itself(build):
    model = build()
    names, expected = set(vars(model)), model(X)
    unwrap(wrap(model))
    assert not is_wrapped(model) and set(vars(model)) == names and torch.equal(model(X), expected)


def test_copies_and_pickles_stay_wrapped(build):
    model = wrap(build())
    ones = zero_state(model, 3).map(lambda t, _: torch.ones_like(t))
    expected = model(X, initial_state=ones).predictions
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert is_wrapped(other) and torch.equal(other(X, initial_state=ones).predictions, expected)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_under_autocast_the_state_is_float32(kind):
    model = wrap(Regressor(kind))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(X, initial_state=zero_state(model, 3))
    assert output.predictions.dtype == torch.bfloat16
    assert {t.dtype for t in output.final_state.tensors["layer"].values()} == {torch.float32}


# -- what a module may be ----------------------------------------------------------------------------------------------


def test_a_layer_in_a_library_s_model_inside_a_module():
    """A head of one's own on a library's base model: its layers are known, and run within the module's call."""
    from transformers import Mamba2Config, Mamba2Model

    class Pitch(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            config = Mamba2Config(
                hidden_size=16, num_hidden_layers=2, state_size=4, head_dim=8, num_heads=4, n_groups=1
            )
            self.before, self.backbone, self.after = nn.Linear(5, 16), Mamba2Model(config), nn.Linear(16, 3)

        def forward(self, x):
            return self.after(self.backbone(inputs_embeds=self.before(x))[0])

    result = check(Pitch(), inputs=X)
    assert result.passed and result.family == "mamba2", [c for c in result.checks if not c.passed]


class Nested(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def test_a_part_of_a_module_is_not_wrapped_beside_the_whole():
    """Its layers would answer to two names, and the state of one of the two be lost."""
    whole, part = Nested(Regressor()), wrap(Regressor())
    with pytest.raises(InputError, match=r"inner\.layer \(GRU\) is wrapped already, as layer of another module"):
        wrap(Nested(part))
    assert is_wrapped(part) and part(X).final_state.rows == 3
    wrap(whole)
    with pytest.raises(InputError, match=r"layer \(GRU\) is wrapped already, as inner\.layer"):
        wrap(whole.inner)
    assert is_wrapped(whole) and whole(X).final_state.rows == 3


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use, match",
    [
        (lambda gru, x: gru(x, x.new_zeros(1, len(x), 5))[0], "hx"),
        (lambda gru, x: gru(pack_padded_sequence(x, [40] * 3, batch_first=True)), "PackedSequence"),
        (lambda gru, x: gru(x[0])[0], r"shape \(40, 5\)"),
        (lambda gru, x: gru(gru(x)[0])[0], "twice"),
        (lambda gru, x: gru(x.transpose(0, 1))[0], "was given 40 rows of 3"),
        (lambda gru, x: gru(x.flatten(0, 1)[None])[0], "was given 1 rows"),
    ],
    ids=["its own state", "packed", "no batch", "called twice", "transposed", "rows joined"],
)
def test_what_a_state_cannot_follow_is_refused(use, match):
    model = wrap(Using(use))
    with pytest.raises(InputError, match=match):
        model(X, initial_state=zero_state(model, 3))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.attention = nn.GRU(5, 6, batch_first=True), nn.MultiheadAttention(6, 2)


class Looping(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.cell = nn.GRU(5, 6, batch_first=True), nn.LSTMCell(6, 6)


class Clashing(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(5, 6, batch_first=True)

    def forward(self, x, initial_state=None):
        return self.gru(x, initial_state)[0]


@pytest.mark.parametrize(
    "model, match",
    [
        (Using(None, bidirectional=True), "gru .GRU. is bidirectional"),
        (Attending(), "MultiheadAttention"),
        (Looping(), "cell .LSTMCell.*a cell, whose state its caller keeps"),
        (nn.LSTM(5, 6), "put it into a module"),
        (nn.Sequential(nn.Linear(5, 6)), "no recurrent layer"),
        (Clashing(), "rename it"),
    ],
    ids=["bidirectional", "attention", "cell", "bare", "none", "clash"],
)
def test_a_module_that_cannot_be_wrapped_is_refused_and_left_alone(model, match):
    names = {n: set(vars(m)) for n, m in model.named_modules()}
    with pytest.raises(InputError, match=match):
        wrap(model)
    assert {n: set(vars(m)) for n, m in model.named_modules()} == names


class Skipping(nn.Module):
    def __init__(self):
        super().__init__()
        self.lower, self.upper = nn.GRU(5, 6, batch_first=True), nn.GRU(6, 6, batch_first=True)

    def forward(self, x):
        y = self.lower(x)[0]
        return self.upper(y)[0] if self.training else y


def test_a_layer_that_was_not_run_is_told():
    model = wrap(Skipping())
    assert set(model(X).final_state.tensors) == {"lower", "upper"}
    with pytest.raises(InputError, match="layer upper was not run in this forward of Skipping"):
        model.eval()(X)
