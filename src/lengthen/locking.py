"""One run at a time in a folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lengthen.errors import InputError


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Holds a run folder until the end, or until this process is gone, however it went; InputError where another has it.

    Two runs in one folder would clear away what the other wrote. A file system without locks holds nothing.
    """
    import fcntl

    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise InputError(
            f"Another run is writing to {folder}; wait for its end, or stop all of its processes."
        ) from None
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    try:
        yield
    finally:
        os.close(held)
