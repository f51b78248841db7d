"""The table of families: every layer has one kind at most, found by its class or by its two methods."""

from dataclasses import replace

import pytest
from torch import nn
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from lengthen import kernels
from lengthen.errors import InputError
from lengthen.models.families import FAMILIES, FAMILY_OF, KINDS, kind_of, register_family
from lengthen.models.family import Family
from lengthen.models.hooks import QUANTITIES
from tests.models.test_stateful_layer import LeakySums
from tests.test_new_family import tables  # noqa: F401

pytestmark = pytest.mark.usefixtures("tables")


class Mine(nn.Module):
    """A layer of no family."""


class Special(nn.GRU):
    """A library's class with a name of one's own."""


class Both(nn.GRU):
    """torch's own layer, which has two methods of these names besides."""

    zero_state, scan = LeakySums.zero_state, LeakySums.scan


def family(name, *layers):
    return Family(name, (replace(KINDS["classic"], name=name, layers=layers),))


def test_every_kind_is_in_one_family_and_every_class_in_one_kind():
    kinds = [(kind, family.name) for family in FAMILIES for kind in family.kinds]
    assert [kind.name for kind, _ in kinds] == list(KINDS)
    assert {kind.name: family for kind, family in kinds} == FAMILY_OF
    classes = [name for kind, _ in kinds for name in kind.layers]
    assert len(classes) == len(set(classes)) > 20


def test_kinds_name_kernels_and_quantities_that_there_are():
    assert {kind.kernel for kind in KINDS.values()} <= {*kernels.__all__, "torch", "the layer's scan"}
    assert set().union(*(kind.quantities for kind in KINDS.values())) == QUANTITIES.keys()


def test_a_layer_is_known_by_its_class_or_that_it_derives_from():
    assert kind_of(Special(2, 2)) is kind_of(nn.GRU(2, 2)) is KINDS["classic"]
    assert kind_of(Mamba2Mixer.__new__(Mamba2Mixer)) is KINDS["mamba2"]
    assert kind_of(nn.Linear(2, 2)) is None and kind_of(nn.GRUCell(2, 2)) is None


def test_the_two_methods_count_where_no_class_is_known():
    assert kind_of(LeakySums()) is KINDS["stateful-layer"]
    assert kind_of(Both(2, 2)) is KINDS["classic"]


def test_a_registered_class_is_known_from_then_on():
    assert kind_of(Mine()) is None
    register_family(family("mine", f"{__name__}.Mine"))
    assert kind_of(Mine()) is KINDS["mine"] and FAMILY_OF["mine"] == "mine"


def test_a_name_or_class_that_is_taken_is_refused_and_nothing_of_the_family_stays():
    gru = "torch.nn.modules.rnn.GRU"
    with pytest.raises(InputError, match=rf"^The family mine cannot be registered: {gru} belongs to a family already"):
        register_family(Family("mine", (*family("mine", f"{__name__}.Mine").kinds, *family("other", gru).kinds)))
    assert kind_of(Mine()) is None and "mine" not in KINDS and "mine" not in FAMILY_OF
    with pytest.raises(
        InputError, match=r"^The family mamba2 cannot be registered: the kind mamba2 belongs to a family"
    ):
        register_family(family("mamba2", f"{__name__}.Mine"))
    assert kind_of(Mine()) is None
