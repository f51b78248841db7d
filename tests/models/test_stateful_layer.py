"""Layers of two methods, found wherever they lie: their state is carried, reset, padded and passed like any other."""

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from lengthen import check, post_train, unwrap, wrap
from lengthen.data import load_corpus
from lengthen.errors import InputError
from lengthen.models import StatefulLayer
from lengthen.models.agreement import relative_error
from lengthen.state import TensorSpec
from tests.models.plain_models import frames


class LeakySums(nn.Module):
    """Two leaky sums a head, and the input before as a window: y[t] = out(sums[t], x[t - 1])."""

    state_specs: ClassVar = {"sums": TensorSpec("recurrent", head_axis=1), "before": TensorSpec("window")}

    def __init__(self, size: int = 6) -> None:
        super().__init__()
        self.leak, self.out = nn.Parameter(torch.tensor([1.5, 3.0])), nn.Linear(3 * size, size)
        self.size = size

    def zero_state(self, rows: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        sizes = {"sums": (rows, 2, self.size), "before": (rows, self.size)}
        return {name: torch.zeros(shape, device=device, dtype=dtype) for name, shape in sizes.items()}

    def scan(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        sums, before, made = state["sums"], state["before"], []
        for t in range(x.shape[1]):
            sums = torch.sigmoid(self.leak)[:, None] * sums + x[:, t, None]
            made.append(self.out(torch.cat([sums.flatten(1), before], 1).to(x.dtype)))
            before = x[:, t].to(before.dtype)
        return torch.stack(made, 1), {"sums": sums, "before": before}

    def forward(self, x: Tensor) -> Tensor:
        return self.scan(x, self.zero_state(len(x), x.device, x.dtype))[0]


class Nested(nn.Module):
    """A layer of two methods around a GRU of torch's, whose state is its own matter."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 6, batch_first=True)

    def zero_state(self, rows: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        return {"inner": torch.zeros(rows, 6, device=device, dtype=dtype)}

    def scan(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        y, end = self.gru(x, state["inner"][None])
        return x + y, {"inner": end[0]}

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gru(x)[0]


class Model(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.before, self.layers, self.after = nn.Linear(5, 6), nn.ModuleList(layers), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.after(x)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model(LeakySums(), Nested())


X = frames(3, 20)


def test_the_methods_are_all_it_takes(model):
    assert all(isinstance(layer, StatefulLayer) for layer in model.layers) and not isinstance(
        nn.Linear(1, 1), StatefulLayer
    )
    with torch.no_grad():
        expected = model(X)
        output = wrap(model)(X)
        assert torch.equal(output.predictions, expected) and torch.equal(unwrap(model)(X), expected)
    state = output.final_state
    assert {layer: set(named) for layer, named in state.tensors.items()} == {
        "layers.0": {"sums", "before"},
        "layers.1": {"inner"},
    }
    assert state.specs["layers.0"] == LeakySums.state_specs
    assert state.specs["layers.1"] == {"inner": TensorSpec("recurrent")}
    assert state.statistics()["layers.0"]["sums"]["std"].shape == (3, 2)
    assert state.without_window().tensors["layers.0"]["before"].abs().sum() == 0


def test_passes_the_parity_gate_beside_torch_s_own_layers(model):
    both = nn.Sequential(model, nn.Linear(3, 6), Nested())
    for dtype in (torch.float32, torch.float64):
        result = check(both.to(dtype), inputs=X)
        assert result.passed and result.family == "stateful-layer", [c for c in result.checks if not c.passed]


def test_a_scan_that_forgets_its_state_fails_the_gate(model, monkeypatch):
    monkeypatch.setattr(Nested, "scan", lambda self, x, state: (x + self.gru(x)[0], state))
    failed = {c.name for c in check(model, inputs=X).checks if not c.passed}
    assert {"segments", "token-by-token"} <= failed


def in_place(self, x, state):
    y, end = self.gru(x, state["inner"][None].clone())
    state["inner"].copy_(end[0])
    return x + y, state


def renamed(self, x, state):
    return x, {"outer": state["inner"]}


@pytest.mark.parametrize("scan, match", [(in_place, "in place"), (renamed, "same names")])
@torch.no_grad()
def test_a_scan_that_breaks_the_protocol_is_refused(model, monkeypatch, scan, match):
    monkeypatch.setattr(Nested, "scan", scan)
    with pytest.raises(InputError, match=match):
        wrap(model)(X)


def test_such_a_layer_is_post_trained(model):
    data = [x.numpy() for x in frames(8, 80)]
    corpus = load_corpus(data, targets=[x[:, :3] for x in data])
    before = {n: p.clone() for n, p in model.named_parameters()}
    record = post_train(model, corpus, train_context=16, steps=3, rows=4)
    assert len(record.losses) == 3 and all(not torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_a_forward_that_takes_more_than_its_input_is_refused():
    class Conditioned(Nested):
        def forward(self, x: Tensor, condition: Tensor) -> Tensor:
            return super().forward(x) + condition

    with pytest.raises(InputError, match="condition"):
        wrap(nn.Sequential(Conditioned()))


def test_resets_and_lengths_cut_the_scan_and_nothing_else(model):
    calls = []
    scan = LeakySums.scan

    class Counting(LeakySums):
        def scan(self, x, state):
            calls.append(x.shape[1])
            return scan(self, x, state)

    counted = wrap(Model(Counting()))
    reset = torch.zeros(3, 20, dtype=torch.bool)
    reset[0, 7] = reset[2, 7] = reset[1, 12] = True
    mask = (torch.arange(20) < torch.tensor([[20], [15], [20]])).long()
    with torch.no_grad():
        counted(X)
        assert calls == [20]
        calls.clear()
        found = counted(X, reset=reset, attention_mask=mask)
        assert calls == [7, 5, 3, 5]
        alone = counted(X[1:2, 12:15])
    assert relative_error(found.predictions[1, 12:15], alone.predictions[0]) < 1e-6
    sums = found.final_state.tensors["layers.0"]["sums"], alone.final_state.tensors["layers.0"]["sums"]
    assert relative_error(sums[0][1], sums[1][0]) < 1e-6  # a product rounds by its number of rows
