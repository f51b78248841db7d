"""The command `lengthen`: its commands in the order in which help lists them, and how each of them ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter

from lengthen.cli.configuration import file_options
from lengthen.cli.experiments import bench, demo, rivals, study
from lengthen.cli.judging import compare, diagnose, evaluate, report
from lengthen.cli.models import check, convert, families
from lengthen.cli.options import default_told, whole_or_refused
from lengthen.cli.training import post_train, pretrain
from lengthen.errors import InputError, LengthenError, RunError, one_line

COMMANDS: tuple[Callable[..., int | None], ...] = (
    demo,
    check,
    diagnose,
    post_train,
    pretrain,
    evaluate,
    compare,
    rivals,
    report,
    convert,
    families,
    bench,
    study,
)

app = App(
    name="lengthen",
    help="Make recurrent sequence models work past the length they were trained on, and prove it.",
    version_flags=["--version"],
    default_parameter=Parameter(negative="", show_default=default_told, converter=whole_or_refused),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
for place, command in enumerate(COMMANDS):
    app.command(command, sort_key=place)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits: 0 done, 2 bad input, 3 parity failed, 4 the run failed."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in tokens
    try:
        app.config = file_options(tokens)
        code = app(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        code = _fail(_sentence(error), InputError.exit_code, error, debug)
    except LengthenError as error:
        code = _fail(str(error), error.exit_code, error, debug)
    except KeyboardInterrupt:
        code = _fail("Interrupted; what was written so far is kept.", 130, None, debug)
    except BrokenPipeError:  # whoever read the output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor is what is still to be flushed
        code = 0
    except OSError as error:
        code = _fail(f"The run failed: {error.strerror or error} ({error.filename}).", RunError.exit_code, error, debug)
    except Exception as error:  # whatever a library raises
        said = f"The run failed ({type(error).__name__}: {one_line(error)}); --debug shows where."
        code = _fail(said, RunError.exit_code, error, debug)
    code = code if isinstance(code, int) else 0
    if code and _several_processes():
        # Where another process is lost, what PyTorch tidies up at the end can abort this one, and its exit code with it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _several_processes() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()


def _fail(message: str, code: int, error: BaseException | None, debug: bool) -> int:
    """Prints one sentence on standard error (the traceback before it with debug); returns the exit code."""
    if debug and error is not None:
        import traceback

        traceback.print_exception(error)
    print(f"lengthen: {message}", file=sys.stderr)
    return code


def _sentence(error: CycloptsError) -> str:
    """What cyclopts says of a command line, without its box; where the help is that tells more."""
    command = " ".join(["lengthen", *(error.command_chain or ())])
    if isinstance(error, MissingArgumentError) and error.argument is not None and error.command_chain:
        return f"`{command}` needs a value for {error.argument.name}. See `{command} --help`."
    lines = [line.strip(" │╭╮╰╯─") for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line)
    end = "" if text.endswith(("?", ".")) else "."
    return f"{text}{end} See `{command} --help`."
