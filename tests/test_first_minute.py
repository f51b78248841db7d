"""What is asked of the command line before any work is answered at once, and the public names wait until they are used."""

import ast
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import lengthen
from lengthen.cli import app

HEAVY = ("torch", "transformers", "datasets", "numpy", "altair")
SECONDS = 1.5  # of CPU time; these take about 0.2

COMMANDS = [name for name in app if not name.startswith("-")]
QUESTIONS = [["--help"], ["--version"], ["families"], *([name, "--help"] for name in COMMANDS)]


def test_every_command_is_asked() -> None:
    assert {"check", "post-train", "report"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_an_example_of_itself(name: str) -> None:
    (example,) = re.findall(r"^ *Example: lengthen (.*)$", app[name].help, re.MULTILINE)
    command, _, _ = app.parse_args(shlex.split(example), exit_on_error=False, print_error=False)
    assert command.__name__.replace("_", "-") == name


def test_every_study_is_named_where_one_is_asked_for() -> None:
    from lengthen.studies import LESSONS, STUDIES

    named = set(re.findall(r"[a-z]+(?:-[a-z]+)*", app["study"].help.partition("name: ")[2].partition("seeds: ")[0]))
    assert named >= {*STUDIES, *LESSONS, "rivals"}


def test_answers_import_no_heavy_library() -> None:
    """All questions in one process, which has imported the sum of what each imports."""
    asking = f"""
import sys
from lengthen.cli import main
for question in {QUESTIONS!r}:
    try:
        main(question)
    except SystemExit as exit:
        assert exit.code == 0, question
    heavy = [name for name in {HEAVY!r} if name in sys.modules]
    if heavy:
        sys.exit(f"{{question}} imports {{heavy}}")
"""
    done = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("question", [["--help"], ["families"], ["post-train", "--help"]], ids=" ".join)
def test_answers_come_at_once(question: list[str]) -> None:
    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = spent()
    done = subprocess.run([sys.executable, "-m", "lengthen", *question], capture_output=True, text=True)
    assert done.returncode == 0 and "lengthen" in done.stdout, done.stderr
    assert spent() - before < SECONDS


def test_public_names_are_the_same_to_readers_checkers_and_the_interpreter() -> None:
    """What type checkers see imported, what __all__ and dir() list, and what is found when it is asked for."""
    tree = ast.parse(Path(lengthen.__file__).read_text(encoding="utf-8"))
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    homes = {
        alias.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert set(homes) == set(lengthen.__all__) <= set(dir(lengthen))
    for name, home in homes.items():
        __import__(str(home))
        assert getattr(lengthen, name) is getattr(sys.modules[str(home)], name)
    with pytest.raises(AttributeError, match="no attribute 'lenghten'"):
        _ = lengthen.lenghten  # type: ignore[attr-defined]
