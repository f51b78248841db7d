"""Names with settings are read as they are written, and what is unknown is told with what to do."""

import pytest

from lengthen.errors import InputError
from lengthen.naming import advice, name_and_settings, require_settings, value_of


def test_settings_are_read_after_the_colon() -> None:
    assert name_and_settings("state-passing") == ("state-passing", {})
    assert name_and_settings("a:b=1, c = 0.5,d=True,e=cpu") == ("a", {"b": 1, "c": 0.5, "d": True, "e": "cpu"})
    with pytest.raises(InputError, match=r"^The setting 'b' of a has no value; write b=VALUE\.$"):
        name_and_settings("a:b")


@pytest.mark.parametrize(
    "text, value", [("1", 1), ("1e-3", 0.001), ("false", False), ("inf", float("inf")), ("x1", "x1")]
)
def test_values_have_the_narrowest_type(text: str, value: object) -> None:
    assert value_of(text) == value and type(value_of(text)) is type(value)


def test_settings_are_held_against_their_types() -> None:
    require_settings(
        "a", {"share": 1, "device": "cpu", "on": True}, {"share": "float", "device": "str | None", "on": "bool"}
    )
    for settings, sentence in (
        ({"share": "half"}, r"^The setting share of a is 'half'; give a number\.$"),
        ({"on": "maybe"}, r"^The setting on of a is 'maybe'; give true or false\.$"),
        ({"on": 1}, r"^The setting on of a is 1; give true or false\.$"),
        ({"share": True}, r"^The setting share of a is true; give a number\.$"),
        ({"share": float("nan")}, r"^The setting share of a is nan; give a number\.$"),
        ({"shore": 1}, r"^a has no setting 'shore'; perhaps 'share' was meant\.$"),
    ):
        with pytest.raises(InputError, match=sentence):
            require_settings("a", settings, {"share": "float", "on": "bool"})


def test_advice_names_the_nearest_or_all() -> None:
    assert advice("x", []) == "leave it out"
    assert advice("ration", ["ratio", "gain"]) == "perhaps 'ratio' was meant"
    assert advice("x", ["ratio", "gain"]) == "choose one of ratio, gain"
