"""The run folder of a command: refused, replaced or gone on in before any work; its page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lengthen.cli.options import Common
from lengthen.cli.output import first_process
from lengthen.errors import InputError
from lengthen.locking import alone_in

DIAGNOSIS_CHECKPOINT = "diagnosis-checkpoint"
"""The folder in a run folder where an interrupted diagnosis goes on."""
EVALUATION_CELLS = "cells.jsonl"
"""The file in a run folder where an interrupted evaluation goes on."""
STUDY_CELLS = "cells"
"""The same of studies."""


@contextmanager
def run_folder(
    out: Path | None, command: str, common: Common, *, resume: bool = False, trains: bool = False
) -> Iterator[None]:
    """Makes sure that the run folder can be written before any work, and says in run.json what runs there.

    A folder that holds a run is refused, with --overwrite set aside until the new one is done, and gone on in with
    resume. Where the input turns out to be bad before anything else was written, no trace stays. The folder is held until
    the end, so that no second run writes there; trains: by the training itself.
    """
    import json
    import shutil

    from lengthen.results import SCHEMA_VERSION, versions, write_text

    if out is None or not first_process():
        yield
        return
    if out.name in ("", ".."):
        raise InputError(f"The run folder {out} has no name of its own; give a folder that has, such as {out / 'run'}.")
    if out.is_dir():
        with alone_in(out):
            pass
    aside = out.with_name(f".{out.name}.replaced")
    begun = (out / name for name in (DIAGNOSIS_CHECKPOINT, STUDY_CELLS, EVALUATION_CELLS))
    checkpointed = any(out.glob("checkpoint-*/complete.json")) or any(folder.exists() for folder in begun)
    if resume and common.overwrite:
        raise InputError(f"--resume goes on in {out} and --overwrite replaces it; give one of them.")
    if resume and checkpointed:
        pass
    elif checkpointed or (out / "results").exists() or (out / "model").exists():
        if not common.overwrite:
            other = "go on with --resume" if checkpointed else "choose another --out"
            if not checkpointed and (out / "results").exists() and not (out / "report.html").exists():
                other = f"write its page with `lengthen report {out}`"
            raise InputError(f"{out} already holds a run; {other}, or replace it with --overwrite.")
        if not (out / "run.json").exists():
            raise InputError(f"{out} is not the folder of a run, so it is not replaced; choose another --out.")
        shutil.rmtree(aside, ignore_errors=True)
        out.rename(aside)
    elif resume:
        print(f"lengthen: {out} holds no checkpoint to resume from; the run begins afresh.", file=sys.stderr)
    elif (out / "run.json").exists():
        print(f"lengthen: {out} holds a run that was not finished; it is replaced.", file=sys.stderr)
        (out / "metrics.jsonl").unlink(missing_ok=True)
    fresh = not out.exists()
    document = {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "arguments": sys.argv[1:],
        "seed": common.seed,
        "versions": versions(),
    }
    write_text(out / "run.json", json.dumps(document, indent=1) + "\n")
    held = ExitStack()
    if not trains:
        held.enter_context(alone_in(out))
    try:
        with held:
            yield
    except InputError:
        if fresh and [p.name for p in out.iterdir()] == ["run.json"]:
            shutil.rmtree(out)
            if aside.exists():
                aside.rename(out)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def write_page(out: Path) -> None:
    """Writes the run folder's page and figures."""
    from lengthen.reporting import write_report

    if first_process():
        write_report(out)
