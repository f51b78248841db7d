"""What a kind of layer says of its layers: their specs, their outputs and arguments, and what a model with them needs."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from lengthen import unwrap, wrap
from lengthen.errors import InputError
from lengthen.models.families import register_family
from lengthen.models.family import Family, LayerKind
from lengthen.state import TensorSpec
from tests.test_new_family import tables  # noqa: F401

pytestmark = pytest.mark.usefixtures("tables")
X = torch.arange(8.0).view(2, 4, 1)


class Sums(nn.Module):
    """Sums so far, times a gain; a library's forward that returns them and how many there are."""

    def forward(self, x, gain=1.0, unheard=None):
        return gain * x.cumsum(1), x.shape[1]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.sums, self.prepared = Sums(), 0

    def forward(self, x, gain=1.0):
        y, length = self.sums(x, gain, unheard=3)
        return y / length


def forward(layer, x, state, marks, gain=1.0):
    start = torch.zeros(len(x), 1) if state is None else state["sum"]
    sums = start[:, None] + x.cumsum(1)
    return gain * sums, {"sum": sums[:, -1]}


def prepared(by):
    def change(model):
        model.prepared += by

    return change


KIND = LayerKind(
    name="sums",
    kernel="linear_scan",
    layers=(f"{__name__}.Sums",),
    forward=forward,
    zero_state=lambda layer, rows, device, dtype: {"sum": torch.zeros(rows, 1, device=device, dtype=dtype)},
    specs={"sum": TensorSpec("recurrent")},
    returns=lambda layer, y: (y, y.shape[1]),
    arguments=("gain",),
    prepare=prepared(1),
    restore=prepared(-1),
)


def test_specs_may_be_the_same_for_all_layers_or_those_of_one():
    narrow, wide = nn.Linear(1, 1), nn.Linear(2, 1)
    by_layer = replace(KIND, specs=lambda layer: {"sum": TensorSpec("recurrent", head_axis=layer.in_features)})
    assert KIND.specs_of(narrow) is KIND.specs_of(wide) is KIND.specs
    assert [by_layer.specs_of(layer)["sum"].head_axis for layer in (narrow, wide)] == [1, 2]


def test_a_layer_gives_what_the_library_s_gives_and_hears_the_arguments_that_its_kind_names():
    expected = Model()(X, gain=3.0)
    register_family(Family("sums", (KIND,)))
    model = wrap(Model())
    output = model(X, gain=3.0)
    assert torch.equal(output.predictions, expected)
    assert output.final_state.tensors["sums"]["sum"].flatten().tolist() == [6, 22]


def test_a_model_is_prepared_once_however_many_layers_it_has_and_restored():
    register_family(Family("sums", (KIND,)))
    model = Model()
    model.more = nn.ModuleList([Sums(), Sums()])
    assert wrap(model).prepared == 1 and wrap(model).prepared == 1
    assert unwrap(model).prepared == 0


def test_a_kind_may_refuse_a_model_before_anything_is_put_on_it():
    def refuse(model):
        raise InputError("Sums want a larger model.")

    register_family(Family("sums", (replace(KIND, prepare=refuse),)))
    model = Model()
    with pytest.raises(InputError, match=r"^Sums want a larger model\.$"):
        wrap(model)
    assert "forward" not in model.__dict__ and not {"forward", "_lengthen"} & model.sums.__dict__.keys()


def test_nothing_is_done_to_a_model_unless_a_kind_says_so():
    plain = LayerKind(*(getattr(KIND, name) for name in ("name", "kernel", "layers", "forward", "zero_state", "specs")))
    model = Model()
    before = dict(model.__dict__)
    plain.prepare(model)
    plain.restore(model)
    assert model.__dict__ == before and plain.returns(model.sums, X) is X
    assert plain.own_cache and not plain.arguments and not plain.quantities
