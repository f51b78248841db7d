"""Names with settings are read as they are written, and what is unknown is told with what to do."""

import pytest

from lengthen.errors import InputError
from lengthen.naming import advice, name_and_settings, require_settings, value_of


def test_settings_are_read_after_the_colon() -> None:
    assert name_and_settings("state-passing") == ("state-passing", {})
    assert name_and_settings("a:b=1, c = 0.5,d=True,e=cpu") == ("a", {"b": 1, "c": 0.5, "d": True, "e": "cpu"})
    with pytest.raises(InputError, match=r"^The setting 'b' of a has no value; write b=VALUE\.$"):
        name_and_settings("a:b")
    with pytest.raises(InputError, match=r"^The setting b of a is given twice; keep one\.$"):
        name_and_settings("a:b=5,b =6")


@pytest.mark.parametrize(
    "text, value", [("1", 1), ("1e-3", 0.001), ("false", False), ("inf", float("inf")), ("x1", "x1")]
)
def test_values_have_the_narrowest_type(text: str, value: object) -> None:
    assert value_of(text) == value and type(value_of(text)) is type(value)


def test_settings_are_held_against_their_types() -> None:
    kinds = {"share": "float", "device": "str | None", "on": "bool", "kept": "int | None", "word": "str"}
    require_settings("a", {"share": 1, "device": "cpu", "on": True, "kept": None, "word": "any"}, kinds)
    require_settings("a", {"device": None, "kept": 3}, kinds)
    for settings, sentence in (
        ({"share": "half"}, r"^The setting share of a is 'half'; give a number\.$"),
        ({"on": "maybe"}, r"^The setting on of a is 'maybe'; give true or false\.$"),
        ({"on": 1}, r"^The setting on of a is 1; give true or false\.$"),
        ({"share": True}, r"^The setting share of a is true; give a number\.$"),
        ({"share": float("nan")}, r"^The setting share of a is nan; give a number\.$"),
        ({"share": float("inf")}, r"^The setting share of a is inf; give a number\.$"),
        ({"share": None}, r"^The setting share of a is None; give a number\.$"),
        ({"share": [1]}, r"^The setting share of a is \[1\]; give a number\.$"),
        ({"kept": "two"}, r"^The setting kept of a is 'two'; give a number\.$"),
        ({"word": []}, r"^The setting word of a is \[\]; give a word\.$"),
        ({"word": None}, r"^The setting word of a is None; give a word\.$"),
        ({"device": 3}, r"^The setting device of a is 3; give a word\.$"),
        ({"shore": 1}, r"^a has no setting 'shore'; perhaps 'share' was meant\.$"),
    ):
        with pytest.raises(InputError, match=sentence):
            require_settings("a", settings, kinds)


def test_advice_names_the_nearest_or_all() -> None:
    assert advice("x", []) == "leave it out"
    assert advice("ration", ["ratio", "gain"]) == "perhaps 'ratio' was meant"
    assert advice("x", ["ratio", "gain"]) == "choose one of ratio, gain"
