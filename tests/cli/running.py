"""A command run in this process, and what lies in a folder."""

import pytest

from lengthen.cli import main


def run(capsys, *arguments):
    """(exit code, standard output, standard error)"""
    with pytest.raises(SystemExit) as exit_:
        main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err


def files(folder):
    return sorted(str(p) for p in folder.rglob("*"))
