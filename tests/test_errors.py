"""Errors carry the exit code of their kind and one line of what a library said."""

import errno

import pytest

from lengthen.errors import InputError, LengthenError, ParityError, RunError, disk_is_full, one_line


def test_each_kind_ends_a_command_with_its_own_code():
    assert {kind: kind("x").exit_code for kind in (InputError, ParityError, RunError)} == {
        InputError: 2,
        ParityError: 3,
        RunError: 4,
    }
    assert all(issubclass(kind, LengthenError) for kind in (InputError, ParityError, RunError))
    with pytest.raises(ValueError):  # what a caller of the library catches for a bad argument
        raise InputError("x")


@pytest.mark.parametrize(
    "said, told",
    [
        ("It failed.", "It failed"),
        (" one\n\n  two\n", "one two"),
        ("", "KeyError"),
        (" \n", "KeyError"),
        ("word " * 100, "word " * 39 + "..."),
    ],
)
def test_what_a_library_says_becomes_one_short_line(said, told):
    class KeyError(Exception):
        pass

    found = one_line(KeyError(said))
    assert found == told and "\n" not in found and len(found) <= 200


@pytest.mark.parametrize(
    "error, full",
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"), True),
        (RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_a_full_disk_is_known_from_whoever_met_it(error, full):
    assert disk_is_full(error) is full
