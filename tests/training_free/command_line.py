"""What a command says of the model and the texts in a folder."""

import pytest

from lengthen.cli import main
from tests.training_free.texts import L, T


def run(capsys, *arguments):
    """(exit code, standard output, standard error)"""
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return end.value.code, captured.out, captured.err


def asked(folder, command, *more):
    return [command, folder / "model", "--data", folder / "text.txt", "--train-context", T, "--max-length", L, *more]
