"""One run at a time in a folder: the second is refused, and nothing that ended keeps the folder."""

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from lengthen.errors import InputError
from lengthen.locking import alone_in

HOLDS = """
import sys, time
from pathlib import Path
from lengthen.locking import alone_in
with alone_in(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_run_is_refused_and_the_folder_is_free_again_after_the_first(tmp_path):
    with alone_in(tmp_path):
        with (
            pytest.raises(InputError, match=rf"^Another run is writing to {tmp_path}; wait for its end, or stop"),
            alone_in(tmp_path),
        ):
            pytest.fail("two runs were let into one folder")
        (tmp_path / "other").mkdir()
        with alone_in(tmp_path / "other"):
            pass
    with alone_in(tmp_path):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["other"]  # no lock file is left


def test_a_run_that_fails_frees_its_folder(tmp_path):
    with pytest.raises(ZeroDivisionError), alone_in(tmp_path):
        raise ZeroDivisionError
    with alone_in(tmp_path):
        pass


def test_another_process_is_kept_out_until_the_first_is_gone_however_it_went(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="Another run"), alone_in(tmp_path):
            pass
        os.kill(first.pid, signal.SIGKILL)
    with alone_in(tmp_path):
        pass


@pytest.mark.parametrize("number, held", [(errno.ENOLCK, False), (errno.EOPNOTSUPP, False), (errno.EIO, True)])
def test_a_file_system_without_locks_holds_nothing_and_a_broken_one_is_told(tmp_path, monkeypatch, number, held):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    if held:
        with pytest.raises(OSError, match=os.strerror(number)), alone_in(tmp_path):
            pass
    else:
        with alone_in(tmp_path):
            pass
