"""How a command ends: exit codes, a traceback only when asked, nothing said of a reader that left."""

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["diagnose", "m", "--train-context"], "`lengthen diagnose` needs a value for --train-context."),
        (["diagnose", "m", "--train-context", "8"], "`lengthen diagnose` needs a value for --data."),
        (["diagnose", "m", "--data", "t", "--train-context", "8", "--nothing", "8"], "Unknown option: --nothing."),
    ],
)
def test_a_wrong_command_line_is_told_with_the_help_of_its_command(capsys, arguments, said):
    code, _, err = run(capsys, *arguments)
    assert code == 2 and err.startswith(f"lengthen: {said}") and err.endswith("See `lengthen diagnose --help`.\n")


def test_a_command_that_is_none_is_told_with_the_help_of_all(capsys):
    code, _, err = run(capsys, "diagnos")
    assert code == 2 and 'Did you mean "diagnose"?' in err and err.endswith("See `lengthen --help`.\n")
