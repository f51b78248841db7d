"""The commands that judge a model or show what was judged: diagnose, evaluate, compare, report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from lengthen.cli.configuration import prepare
from lengthen.cli.options import DEFAULTS, Common, device_of, shares, sizes
from lengthen.cli.output import Progress, print_json, show
from lengthen.cli.run_folders import DIAGNOSIS_CHECKPOINT, EVALUATION_CELLS, run_folder, write_page
from lengthen.errors import InputError

if TYPE_CHECKING:
    from lengthen.training_free import FittedMethod


def diagnose(
    model: str,
    *,
    data: str,
    train_context: int,
    max_length: int | None = None,
    n: int = 16,
    positions: Annotated[list[int] | None, Parameter(consume_multiple=True)] = None,
    tokenizer: str | None = None,
    join: bool = False,
    segment: int | None = None,
    remembrance: Annotated[bool, Parameter(negative="--no-remembrance")] = True,
    drift: Annotated[bool, Parameter(negative="--no-drift")] = True,
    patching: Annotated[bool, Parameter(negative="--no-patching")] = True,
    method: Annotated[str | None, Parameter(name="--with")] = None,
    calibration: str | None = None,
    resume: bool = False,
    common: Common = DEFAULTS,
) -> None:
    """Show how far a model generalises past its training context, where and why it breaks, and what to do.

    Example: lengthen diagnose ./my-mamba2 --data held-out.txt --train-context 2048 --max-length 131072

    Args:
        model: A directory or hub name.
        data: Held-out text: a file, a directory, or hub:OWNER/NAME.
        train_context: Positions of a training window.
        max_length: Positions to go to (64 training contexts unless said).
        n: Sequences, at least 16 for a verdict.
        positions: Where to tell the perplexity (2048 8192 32768 131072 unless said).
        tokenizer: A tokenizer's directory or name, or "bytes" (the model's own unless said).
        join: Lay documents end to end where none is long enough.
        segment: Positions a call (chosen by device and n unless said).
        remembrance: Measure how much the tokens before each of several starts still count.
        drift: Compare the states with what training shows, and measure how long each head remembers.
        patching: Where the model fails, find the layer and head that it comes from.
        method: Run the model under a training-free method: a name with settings after a colon, as in
            constant-delta:ratio=0.5, or a folder that holds a fit; the fit is kept in OUT/method.
        calibration: Other text to fit the method on, where it needs some.
        resume: Go on with an interrupted diagnosis in --out, to the same result.
    """
    prepare(common)
    if resume and common.out is None:
        raise InputError("--resume goes on with a diagnosis in a run folder; name it with --out.")
    from lengthen.diagnosis import diagnose as run
    from lengthen.diagnosis.diagnosing import FIELD_POSITIONS
    from lengthen.models import load, tokenizer_for
    from lengthen.training_free.using import used

    _require_other_text(calibration, data)
    with run_folder(common.out, "diagnose", common, resume=resume), Progress(common) as progress:
        loaded, reader = load(model, dtype=common.dtype, device=device_of(common)), tokenizer or tokenizer_for(model)
        under = used(
            loaded,
            method,
            streamed=True,
            kept=_method_folder(common),
            resume=resume,
            train_context=train_context,
            length=max_length or 64 * train_context,
            calibration=calibration,
            tokenizer=reader,
            seed=common.seed,
        )
        with under as fitted:
            result = run(
                loaded,
                data,
                train_context=train_context,
                max_length=max_length,
                n=n,
                positions=positions or FIELD_POSITIONS,
                tokenizer=reader,
                join=join,
                segment=segment,
                remembrance=remembrance,
                drift=drift,
                patching=patching,
                checkpoint=None if common.out is None else common.out / DIAGNOSIS_CHECKPOINT,
                resume=resume,
                seed=common.seed,
                name=_told_under(model, fitted),
                progress=progress.single("diagnose"),
            )
        if common.out is not None:
            result.save(common.out / "results" / "diagnosis.json")
            write_page(common.out)
    show(result, common, common.out)


def evaluate(
    model: str,
    *,
    tasks: str,
    lengths: str = "1k,2k,4k,8k",
    depths: str = "0,0.125,0.25,0.375,0.5,0.625,0.75,0.875,1",
    n: int = 100,
    tokenizer: str | None = None,
    haystack: str | None = None,
    max_new_tokens: int | None = None,
    method: Annotated[str | None, Parameter(name="--with")] = None,
    train_context: int | None = None,
    calibration: str | None = None,
    resume: bool = False,
    common: Common = DEFAULTS,
) -> None:
    """Ask a model what it remembers of long prompts: passkey, needles, BABILong's questions, copying, recall.

    Example: lengthen evaluate ./repaired/model --tasks passkey,babilong-qa1 --lengths 2k,4k,64k --n 50

    Args:
        model: A directory or hub name.
        tasks: passkey, niah-single, niah-multikey, niah-multivalue, niah-multiquery, variable-tracking, babilong-qa1 to
            babilong-qa5, copying, associative-recall, selective-copying, file:PATH (JSON lines with input, question and
            target), or lm-eval:TASK (with the extra lm-eval); several divided by commas.
        lengths: Tokens of a prompt, divided by commas; k is 1,024, M its square, 0 the facts without a haystack.
        depths: Where the fact of passkey and niah-single stands, as shares of the haystack.
        n: Haystacks a cell.
        tokenizer: A tokenizer's directory or name, or "bytes" (the model's own unless said).
        haystack: What facts are hidden in: noise, plays, or a text file (each task's own unless said).
        max_new_tokens: Tokens that a model may answer with (the right answer's and 16 more unless said).
        method: Run the model under a training-free method: a name with settings after a colon, as in
            constant-delta:ratio=0.5, or a folder that holds a fit; the fit is kept in OUT/method.
        train_context: Positions of a training window, where the method needs them.
        calibration: Text to fit the method on, where it needs some.
        resume: Go on with an interrupted evaluation in --out, at the next cell.
    """
    prepare(common)
    if resume and common.out is None:
        raise InputError("--resume goes on with an evaluation in a run folder; name it with --out.")
    wanted_lengths, wanted_depths = sizes(lengths), shares(depths)
    from lengthen.models import load, tokenizer_for
    from lengthen.tasks import evaluate as run
    from lengthen.training_free.using import used

    with run_folder(common.out, "evaluate", common, resume=resume), Progress(common) as progress:
        cells = None if common.out is None else common.out / EVALUATION_CELLS
        loaded, reader = load(model, dtype=common.dtype, device=device_of(common)), tokenizer or tokenizer_for(model)
        under = used(
            loaded,
            method,
            streamed=False,
            kept=_method_folder(common),
            resume=resume,
            train_context=train_context,
            length=max(wanted_lengths),
            calibration=calibration,
            tokenizer=reader,
            seed=common.seed,
        )
        with under as fitted:
            result = run(
                loaded,
                [task.strip() for task in tasks.split(",")],
                lengths=wanted_lengths,
                depths=wanted_depths,
                n=n,
                tokenizer=reader,
                haystack=haystack,
                max_new_tokens=max_new_tokens,
                seed=common.seed,
                cells=cells,
                resume=resume,
                name=_told_under(model, fitted),
                progress=progress.single("evaluate"),
            )
        if common.out is not None and cells is not None:
            result.save(common.out / "results" / "evaluation.json")
            cells.unlink()
            write_page(common.out)
    show(result, common, common.out)


def compare(*runs: Path, control: Path | None = None, common: Common = DEFAULTS) -> None:
    """Put diagnosed runs side by side, and certify each against the first by paired differences on the same sequences.

    Example: lengthen compare before after --control control-after --out certificate

    Args:
        runs: Run folders of diagnose, what is compared against first; a demonstration's folder holds several.
        control: Run folder of diagnose for the control arm, the model that was trained as long from the zero state (a run
            named control unless said).
    """
    from lengthen.comparison import compare as run

    with run_folder(common.out, "compare", common):
        result = run(*runs, control=control, out=common.out)
    show(result, common, common.out)


def report(run: Path, *, common: Common = DEFAULTS) -> None:
    """Write a run folder's page and figures again from its results.

    Example: lengthen report demo-run

    Args:
        run: The run folder.
    """
    if common.out is not None:
        raise InputError(f"The page is written into {run} itself; do without --out.")
    from lengthen.reporting import write_report

    page = write_report(run)
    if common.json:
        print_json({"report": str(page)})
    else:
        print(page)


def _method_folder(common: Common) -> Path | None:
    """Where a run folder keeps the fit of the training-free method that the model ran under."""
    return None if common.out is None else common.out / "method"


def _told_under(model: str, fitted: FittedMethod | None) -> str:
    """What a result calls a model that ran under a method."""
    return model if fitted is None else f"{model} under {fitted.method.name}"


def _require_other_text(calibration: str | None, data: str) -> None:
    """Refuses to judge by the text that a method is fitted on."""
    if calibration is not None and Path(calibration).resolve() == Path(data).resolve():
        raise InputError(
            f"{data} is to judge by, so that no method may be fitted on it; give --calibration another text."
        )
