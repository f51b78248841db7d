"""What can go wrong, and with which exit code a command ends: 2 bad input, 3 parity, 4 a failed run."""

from __future__ import annotations

import errno
from textwrap import shorten


class LengthenError(Exception):
    """An error whose message is one sentence a user can act on."""

    exit_code = 4


class InputError(LengthenError, ValueError):
    """The input was wrong (file, argument, model, state): the sentence says what was wrong and what to do."""

    exit_code = 2


class ParityError(LengthenError):
    """A model's recurrent state is not really carried: the sentence names the failed check."""

    exit_code = 3


class RunError(LengthenError):
    """A run could not be finished (loss not finite, disk full, a rank that died)."""

    exit_code = 4


def one_line(error: BaseException) -> str:
    """What a library's error says, as one short line to put in brackets into a sentence; its kind where it says nothing."""
    return shorten(str(error).strip().rstrip("."), 200, placeholder=" ...") or type(error).__name__


def disk_is_full(error: BaseException) -> bool:
    """Whether the system, PyTorch or safetensors raised this because nothing more can be written."""
    signs = ("No space left", "disk is full", "PytorchStreamWriter", "inline_container")
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or any(sign in str(error) for sign in signs)
