"""Methods by name, as the command line has them."""

import importlib
import pkgutil

import pytest

from lengthen import training_free
from lengthen.errors import InputError
from lengthen.training_free import METHODS, method_of
from lengthen.training_free.fitting import Method
from lengthen.training_free.names import method_with
from lengthen.training_free.resets import SoftReset
from lengthen.training_free.step_scaling import ConstantDelta


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("constant-detla", "There is no training-free method 'constant-detla'; perhaps 'constant-delta' was meant."),
        ("nothing", "There is no training-free method 'nothing'; choose one of constant-delta, decay-matching"),
        ("constant-delta:ration=2", "constant-delta has no setting 'ration'; perhaps 'ratio' was meant."),
        ("constant-delta:ratio", "The setting 'ratio' of constant-delta has no value; write ratio=VALUE."),
        ("constant-delta:ratio=half", "The setting ratio of constant-delta is 'half'; give a number."),
    ],
)
def test_a_wrong_name_or_setting_is_told_with_what_to_do(text, sentence):
    with pytest.raises(InputError) as caught:
        method_of(text)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_comes_by_its_name_as_it_is_without_settings(name):
    assert type(method_of(name)) is METHODS[name] and method_of(name) == METHODS[name]() == method_with(name, {})
    assert method_of(name).name == name


def test_every_method_that_there_is_has_a_name_of_its_own():
    for module in pkgutil.iter_modules(training_free.__path__, f"{training_free.__name__}."):
        importlib.import_module(module.name)
    assert {method for method in methods_below(Method) if "name" in vars(method)} == set(METHODS.values())


def methods_below(kind):
    """Of the package, every class below this one."""
    for method in kind.__subclasses__():
        if method.__module__.startswith(training_free.__name__):
            yield from (method, *methods_below(method))


def test_settings_are_read_from_the_text():
    assert method_of("soft-reset:keep=0.25, period=12") == SoftReset(period=12, keep=0.25)
    assert (
        method_of("constant-delta:ratio=1e-2") == method_with("constant-delta", {"ratio": 0.01}) == ConstantDelta(0.01)
    )
