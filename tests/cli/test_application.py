"""How a command ends: exit codes, a traceback only when asked, nothing said of a reader that left."""

import subprocess
import sys

from tests.cli.running import run


def test_an_interruption_says_so(capsys, model, monkeypatch):
    from lengthen import models

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "check", interrupted)
    code, _, err = run(capsys, "check", model)
    assert code == 130 and "Interrupted" in err


def test_a_reader_that_has_read_enough_is_no_failure():
    command = f"{sys.executable} -m lengthen families | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_debug_shows_the_traceback(capsys, tmp_path):
    code, _, err = run(capsys, "check", tmp_path / "nothing", "--debug")
    assert code == 2 and "Traceback" in err
