"""Options as they are read: numbers of tokens with units, shares, devices, and defaults told in help."""

from dataclasses import replace

import pytest

from lengthen.cli.options import DEFAULTS, check_steps, default_told, device_of, shares, sizes
from lengthen.errors import InputError
from tests.cli.running import run


def test_numbers_of_tokens_may_have_units():
    assert sizes("512,4k,1M") == [512, 4096, 1048576] and sizes(" 1K , 2m") == [1024, 2097152]
    for wrong, part in (("", "''"), ("4k,", "''"), ("1.5k", "'1.5k'"), ("-1", "'-1'"), ("4g", "'4g'"), ("k", "'k'")):
        with pytest.raises(InputError) as caught:
            sizes(wrong)
        assert str(caught.value) == f"{part} is no number of tokens; write such as 512,4k,1M."


def test_shares_are_numbers_divided_by_commas():
    assert shares("0,0.5,1") == [0, 0.5, 1]
    with pytest.raises(InputError, match=r"^'0;1' are no shares; write such as 0,0\.5,1\.$"):
        shares("0;1")


def test_a_fraction_is_not_rounded_to_a_whole_number(capsys):
    code, _, err = run(capsys, "study", "families", "--seeds", "1.5")
    assert code == 2 and "1.5 is no whole number" in err


def test_a_device_that_is_not_there_or_holds_nothing_is_refused():
    assert device_of(replace(DEFAULTS, device="cpu")) == "cpu" and device_of(DEFAULTS) in ("cpu", "cuda")
    for wrong, said in (("meta", "holds no values to compute with"), ("abacus", "The device abacus cannot be used (")):
        with pytest.raises(InputError) as caught:
            device_of(replace(DEFAULTS, device=wrong))
        assert said in str(caught.value) and "\n" not in str(caught.value)


def test_help_tells_defaults_as_they_are_typed():
    assert default_told((0.0, 0.25, 1.0)) == "0 0.25 1" and default_told(0) == "0" and default_told(3e-4) == "0.0003"
    assert default_told(None) is None and default_told(False) is None


def test_no_run_has_no_steps_or_no_context():
    check_steps(1, 1)
    with pytest.raises(InputError, match=r"^The number of steps is 0; give at least 1\.$"):
        check_steps(0, 64)
    with pytest.raises(InputError, match=r"^The training context is -1; give at least 1 position\.$"):
        check_steps(10, -1)
