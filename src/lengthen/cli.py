"""The commands: thin, each calls one public function and shows its result."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from lengthen.command_line import (
    DEFAULTS,
    DIAGNOSIS_CHECKPOINT,
    EVALUATION_CELLS,
    STUDY_CELLS,
    Common,
    Progress,
    check_steps,
    default_told,
    device_of,
    fail,
    file_options,
    method_folder,
    prepare,
    print_json,
    require_other_text,
    run_folder,
    sentence,
    shares,
    show,
    sizes,
    told_under,
    write_page,
)
from lengthen.errors import InputError, LengthenError

if TYPE_CHECKING:
    from lengthen.data import Corpus
    from lengthen.results import CheckResult

app = App(
    name="lengthen",
    help="Make recurrent sequence models work past the length they were trained on, and prove it.",
    version_flags=["--version"],
    default_parameter=Parameter(negative="", show_default=default_told),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)

ORDER = (place for place in itertools.count())
"""Help lists the commands as they stand here."""
OK, PARITY_FAILED = 0, 3


@app.command(sort_key=ORDER)
def demo(*, common: Common = DEFAULTS) -> int:
    """Show the whole job on the bundled plays: a model that breaks, five arms, the proof. Takes minutes on a CPU.

    Runs on one thread unless told otherwise: a model this small gains nothing from more.

    Example: lengthen demo --out demo-run
    """
    prepare(replace(common, threads=common.threads or 1))
    from lengthen.demonstration import demo as run

    out = common.out or Path("lengthen-demo")
    with run_folder(out, "demo", common), Progress(common) as progress:
        result = run(seed=common.seed, out=out, progress=progress.stage)
    show(result, common, out)
    return OK


@app.command(sort_key=ORDER)
def check(*models: str, as_is: bool = False, markdown: bool = False, common: Common = DEFAULTS) -> int:
    """Check that a model's recurrent state is really carried, exactly and with gradients.

    Example: lengthen check ./my-mamba2

    Args:
        models: Directories or hub names. With --as-is and none, tiny random models of every class in transformers.
        as_is: Judge the library's own path through its own cache, without lengthen.
        markdown: With --as-is, print the findings as the page docs/compatibility.md.
    """
    prepare(common)
    from lengthen.models import check as run
    from lengthen.models import check_library_path, compatibility_page, load_library_model, survey

    if not models and not as_is:
        raise InputError("No model was given; name a directory or hub name, or use --as-is for a survey.")
    results: list[CheckResult] = []
    with run_folder(common.out, "check", common):
        if not models:
            results = survey(seed=common.seed)
        for name in models:
            model = load_library_model(name, dtype=common.dtype, device=device_of(common))
            judge = check_library_path if as_is else run
            results.append(judge(model, name=name, seed=common.seed))
        if common.out is not None:
            for i, result in enumerate(results):
                result.save(common.out / "results" / (f"check-{i}.json" if len(results) > 1 else "check.json"))
            write_page(common.out)
    if common.json:
        single = len(results) == 1 and not as_is
        print_json(results[0].to_json() if single else {"models": [r.to_json() for r in results]})
    elif as_is and markdown:
        print(compatibility_page(results), end="")
    elif as_is:
        from lengthen.reporting import terminal

        terminal.survey(results)
    else:
        from lengthen.reporting import terminal

        for result in results:
            terminal.checks(result)
    return PARITY_FAILED if models and not all(r.passed for r in results) else OK


@app.command(sort_key=ORDER)
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
) -> int:
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

    require_other_text(calibration, data)
    with run_folder(common.out, "diagnose", common, resume=resume), Progress(common) as progress:
        loaded, reader = load(model, dtype=common.dtype, device=device_of(common)), tokenizer or tokenizer_for(model)
        under = used(
            loaded,
            method,
            streamed=True,
            kept=method_folder(common),
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
                name=told_under(model, fitted),
                progress=progress.single("diagnose"),
            )
        if common.out is not None:
            result.save(common.out / "results" / "diagnosis.json")
            write_page(common.out)
    show(result, common, common.out)
    return OK


@app.command(sort_key=ORDER)
def post_train(
    model: str,
    *,
    data: str | None = None,
    train_context: int,
    task: str | None = None,
    haystack: str | None = None,
    steps: int | Literal["auto"] = 500,
    intervention: str = "state-passing",
    rows: int = 16,
    learning_rate: float = 3e-4,
    warmup: int = 0,
    accumulation: int = 1,
    tokenizer: str | None = None,
    save_steps: int | None = None,
    resume: bool = False,
    watch: str | None = None,
    watch_steps: int = 25,
    dry_run: bool = False,
    processes: int = 1,
    common: Common = DEFAULTS,
) -> int:
    """Post-train a model from initial states that cover those it can reach.

    Example: lengthen post-train ./my-mamba2 --data train.txt --train-context 2048 --steps 500 --out repaired

    Args:
        model: A directory or hub name; it is not changed, the trained model goes to OUT/model.
        data: Training text: a file, a directory, or hub:OWNER/NAME.
        train_context: Positions of a training window.
        task: Instead of data, train on samples of a task (see evaluate), the loss on their answers alone.
        haystack: What a task's facts are hidden in: noise, plays, or a text file (its own unless said).
        steps: Optimiser steps, or auto: as many as it takes until the far loss of --watch is repaired, at most 2000.
        intervention: state-passing, tbptt, fitted-noise, random-noise, or zero (the control); settings after a colon, as in
            state-passing:zero_fraction=0.5; shares of the rows, as in "0.25 zero + 0.75 tbptt".
        rows: Windows a step, over all processes.
        learning_rate: The peak; a tenth of pre-training's is the usual choice.
        warmup: Steps until the peak.
        accumulation: Micro-batches a step.
        tokenizer: A tokenizer's directory or name, or "bytes" (the model's own unless said).
        save_steps: Steps between two checkpoints in OUT, of which the last two are kept (none is written unless said).
        resume: Go on exactly from the last checkpoint in OUT; where there is none, begin.
        watch: Held-out text whose loss in context and far past it is logged on the way.
        watch_steps: Steps between two looks at it.
        dry_run: Print the plan (tokens, memory by formula, the states' size) without reading weights or data.
        processes: With --dry-run, the processes that the run will have.
    """
    training = prepare(common)
    from lengthen.models import load, tokenizer_for
    from lengthen.training import AUTO_STEPS, plan
    from lengthen.training import post_train as run

    if (data is None) == (task is None):
        raise InputError("Give either --data, a text to train on, or --task, a task whose samples to train on.")
    out = common.out or Path("lengthen-post-train")
    check_steps(AUTO_STEPS if steps == "auto" else steps, train_context)
    if dry_run:
        found = plan(
            model,
            train_context=train_context,
            steps=AUTO_STEPS if steps == "auto" else steps,
            intervention=intervention,
            rows=rows,
            accumulation=accumulation,
            processes=processes,
            dtype=common.dtype,
            config=training,
        )
        show(found, common, None)
        return OK

    def source() -> Corpus | str:
        if task is None:
            assert data is not None
            return data
        from lengthen.tasks import training_samples, unfit

        reason = unfit(task, intervention)
        if reason is not None:
            print(f"lengthen: {reason}", file=sys.stderr)
        return training_samples(
            task,
            train_context=train_context,
            count=rows * (AUTO_STEPS if steps == "auto" else steps),
            tokenizer=tokenizer or tokenizer_for(model),
            seed=common.seed,
            haystack=haystack,
        )

    with run_folder(out, "post-train", common, resume=resume), Progress(common) as progress:
        result = run(
            load(model, dtype=common.dtype, device=device_of(common)),
            source(),
            train_context=train_context,
            steps=steps,
            intervention=intervention,
            rows=rows,
            learning_rate=learning_rate,
            warmup=warmup,
            accumulation=accumulation,
            tokenizer=tokenizer or tokenizer_for(model),
            seed=common.seed,
            out=out,
            config=training,
            progress=progress.single(intervention),
            save_steps=save_steps,
            resume=resume,
            watch=watch,
            watch_steps=watch_steps,
        )
        write_page(out)
    show(result, common, out)
    return OK


@app.command(sort_key=ORDER)
def pretrain(
    *,
    data: str | None = None,
    train_context: int = 64,
    steps: int = 1000,
    width: int = 64,
    layers: int = 2,
    head_dim: int = 32,
    state_size: int = 64,
    groups: int = 1,
    decay_range: tuple[float, float] = (1.0, 16.0),
    rows: int = 16,
    learning_rate: float = 4e-3,
    warmup: int = 100,
    intervention: str = "zero",
    save_steps: int | None = None,
    resume: bool = False,
    common: Common = DEFAULTS,
) -> int:
    """Train a small Mamba-2 on bytes from random weights, to study where such models break.

    Example: lengthen pretrain --decay-range 0.002 0.05 --out slow

    Args:
        data: Training text (the bundled plays unless said).
        train_context: Positions of a training window.
        steps: Optimiser steps.
        width: Hidden size.
        layers: Number of layers.
        head_dim: Channels of a head.
        state_size: State entries per channel.
        groups: Groups of heads that share keys and queries.
        decay_range: A of each head is drawn uniformly from here; 1 16 is the stock initialisation, 0.002 0.05 slow.
        rows: Windows a step.
        learning_rate: The peak.
        warmup: Steps until the peak.
        intervention: state-passing, tbptt, fitted-noise, random-noise, or zero; settings as of post-train.
        save_steps: Steps between two checkpoints in OUT, of which the last two are kept (none is written unless said).
        resume: Go on exactly from the last checkpoint in OUT; where there is none, begin.
    """
    training = prepare(common)
    from lengthen.data import bundled_plays
    from lengthen.training import Mamba2Recipe
    from lengthen.training import pretrain as run

    out = common.out or Path("lengthen-pretrain")
    check_steps(steps, train_context)
    recipe = Mamba2Recipe(
        width=width,
        layers=layers,
        head_dim=head_dim,
        state_size=state_size,
        groups=groups,
        decay_range=decay_range,
    )
    with run_folder(out, "pretrain", common, resume=resume), Progress(common) as progress:
        _, result = run(
            data if data is not None else bundled_plays()[0],
            train_context=train_context,
            steps=steps,
            recipe=recipe,
            intervention=intervention,
            rows=rows,
            learning_rate=learning_rate,
            warmup=warmup,
            seed=common.seed,
            device=device_of(common),
            out=out,
            config=training,
            progress=progress.single("pretrain"),
            save_steps=save_steps,
            resume=resume,
        )
        write_page(out)
    show(result, common, out)
    return OK


@app.command(sort_key=ORDER)
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
) -> int:
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
            kept=method_folder(common),
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
                name=told_under(model, fitted),
                progress=progress.single("evaluate"),
            )
        if common.out is not None and cells is not None:
            result.save(common.out / "results" / "evaluation.json")
            cells.unlink()
            write_page(common.out)
    show(result, common, common.out)
    return OK


@app.command(sort_key=ORDER)
def compare(*runs: Path, control: Path | None = None, common: Common = DEFAULTS) -> int:
    """Put diagnosed runs side by side, and certify each against the first by paired differences on the same sequences.

    Example: lengthen compare before after --control control-after --out certificate

    Args:
        runs: Run folders of diagnose, what is compared against first; a demonstration's folder holds several.
        control: The same of the control arm, post-trained as long from the zero state (a run named control unless said).
    """
    from lengthen.comparison import compare as run

    with run_folder(common.out, "compare", common):
        result = run(*runs, control=control, out=common.out)
    show(result, common, common.out)
    return OK


@app.command(sort_key=ORDER)
def rivals(
    model: str,
    *,
    data: str,
    train_context: int,
    max_length: int | None = None,
    methods: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    n: int = 16,
    train_data: str | None = None,
    post_trained: Path | None = None,
    control: Path | None = None,
    steps: int = 500,
    rows: int = 16,
    learning_rate: float = 3e-4,
    tokenizer: str | None = None,
    join: bool = False,
    common: Common = DEFAULTS,
) -> int:
    """Hold post-training against methods that train nothing, alone and together, on the same text.

    Goes on in --out where it was interrupted.

    Example: lengthen rivals ./my-mamba2 --data held-out.txt --train-data train.txt --train-context 2048 --max-length 65536

    Args:
        model: A directory or hub name; it is not changed.
        data: Text that the model has not seen: a quarter to calibrate and train on, a quarter to choose settings by, half to
            report on.
        train_context: Positions of a training window.
        max_length: Positions to go to (64 training contexts unless said).
        methods: Training-free methods with settings after a colon, as in constant-delta:ratio=0.5; of several with one name
            the best is chosen (every method there is unless said).
        n: Sequences to report on, at least 16 for intervals.
        train_data: Other text to calibrate and train on; then a quarter of --data to choose by, the rest to report on.
        post_trained: The run folder of post-train by state passing (trained in OUT/state-passing unless said).
        control: The run folder of the same from the zero state (trained in OUT/control unless said).
        steps: Optimiser steps of either.
        rows: Windows a step.
        learning_rate: The peak; a tenth of pre-training's is the usual choice.
        tokenizer: A tokenizer's directory or name, or "bytes" (the model's own unless said).
        join: Lay documents end to end where none is long enough.
    """
    prepare(common)
    from lengthen.models import load, tokenizer_for
    from lengthen.training_free.rivalling import rivals as run

    out = common.out or Path("lengthen-rivals")
    check_steps(steps, train_context)
    begun = (out / STUDY_CELLS).is_dir() and not common.overwrite
    with run_folder(out, "rivals", common, resume=begun), Progress(common) as progress:
        result = run(
            load(model, dtype=common.dtype, device=device_of(common)),
            data,
            train_context=train_context,
            max_length=max_length,
            methods=methods or (),
            n=n,
            train_data=train_data,
            post_trained=post_trained,
            control=control,
            steps=steps,
            rows=rows,
            learning_rate=learning_rate,
            tokenizer=tokenizer or tokenizer_for(model),
            join=join,
            seed=common.seed,
            name=model,
            out=out,
            progress=progress.stage,
        )
    show(result, common, out)
    return OK


@app.command(sort_key=ORDER)
def report(run: Path, *, common: Common = DEFAULTS) -> int:
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
    return OK


@app.command(sort_key=ORDER)
def convert(
    source: str,
    destination: Path,
    *,
    to: Literal["transformers", "mamba_ssm", "fla"] = "transformers",
    common: Common = DEFAULTS,
) -> int:
    """Write a Mamba or Mamba-2 model in another library's checkpoint format, with the same weights to the bit.

    Example: lengthen convert ./repaired/model ./for-mamba-ssm --to mamba_ssm

    Args:
        source: A directory or hub name, in any of the formats.
        destination: The directory to write; one that exists is refused, or with --overwrite replaced.
        to: The format to write.
    """
    if common.out is not None:
        raise InputError(f"The checkpoint is written to {destination}; do without --out.")
    prepare(common)
    from lengthen.models import convert as run

    result = run(source, destination, to=to, overwrite=common.overwrite, seed=common.seed)
    show(result, common, None)
    return OK


@app.command(sort_key=ORDER)
def families(*, verify: bool = False, common: Common = DEFAULTS) -> int:
    """List the model classes that lengthen can wrap, their kernels, and what was verified of each.

    Example: lengthen families --verify

    Args:
        verify: Build every class of the installed libraries small and run the parity gate on it, instead of printing
            what was found when this version was made.
    """
    if not verify:
        if common.out is not None:
            raise InputError("--out keeps what --verify finds; give both, or neither.")
        from importlib.resources import files

        from lengthen.results import SupportTable

        result = SupportTable.load(Path(str(files("lengthen") / "assets" / "families.json")))
        show(result, common, None)
        return OK
    prepare(common)
    from lengthen.models.verification import verify_support

    with run_folder(common.out, "families", common), Progress(common) as progress:
        result = verify_support(seed=common.seed, progress=progress.single("families"))
        if common.out is not None:
            result.save(common.out / "results" / "families.json")
    show(result, common, None)
    return OK if all(all(row.verified.values()) for row in result.classes) else PARITY_FAILED


@app.command(sort_key=ORDER)
def bench(
    *ops: str,
    pairs: int = 5,
    memory: Annotated[bool, Parameter(negative="--no-memory")] = True,
    common: Common = DEFAULTS,
) -> int:
    """Time the recurrences and whole layers against their peers on a CPU: one thread, interleaved pairs, medians.

    Example: lengthen bench ssd selective_scan --json

    Args:
        ops: What to time (everything unless said).
        pairs: Timed pairs of each comparison.
        memory: Measure peak memory too, each side in a process of its own.
    """
    prepare(common)
    from lengthen.studies import benchmark

    with run_folder(common.out, "bench", common):
        result = benchmark(ops or None, pairs=pairs, memory=memory, progress=lambda line: print(line, file=sys.stderr))
        if common.out is not None:
            result.save(common.out / "results" / "benchmark.json")
    show(result, common, None)
    return OK


@app.command(sort_key=ORDER)
def study(
    name: str,
    *,
    seeds: int = 3,
    processes: int | None = None,
    markdown: bool = False,
    common: Common = DEFAULTS,
) -> int:
    """Run a named sweep on small models and the bundled plays, or on a task they learn, over several seeds; minutes on a CPU.

    Goes on in --out where it was interrupted; studies in one folder share what they have in common.

    Example: lengthen study interventions --out studies

    Args:
        name: interventions, zero-fraction, p-zero, noise-std, fitted-noise-window, chain-depth, window-state,
            train-context, training-tokens, model-size, learning-rate, state-size, families, mixtures or default;
            learn-copying, learn-passkey, learn-recall or learn-babilong; rivals.
        seeds: How many, from --seed on.
        processes: Runs side by side, on one thread each (as many as there are CPUs unless said).
        markdown: Print the table as a section of docs/results.md.
    """
    prepare(common)
    from lengthen.reporting import study_markdown
    from lengthen.studies import study as run

    out = common.out or Path("lengthen-study")
    begun = (out / STUDY_CELLS).is_dir() and not common.overwrite
    with run_folder(out, "study", common, resume=begun), Progress(common) as progress:
        result = run(name, seeds=seeds, seed=common.seed, processes=processes, out=out, progress=progress.stage)
    if markdown and not common.json:
        print(study_markdown(result), end="")
    else:
        show(result, common, out)
    return OK


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits: 0 done, 2 bad input, 3 parity failed, 4 the run failed."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in tokens
    try:
        app.config = file_options(tokens)
        code = app(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        code = fail(sentence(error), InputError.exit_code, error, debug)
    except LengthenError as error:
        code = fail(str(error), error.exit_code, error, debug)
    except KeyboardInterrupt:
        code = fail("Interrupted; what was written so far is kept.", 130, None, debug)
    except BrokenPipeError:  # whoever read the output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor is what is still to be flushed
        code = OK
    except OSError as error:
        code = fail(f"The run failed: {error.strerror or error} ({error.filename}).", 4, error, debug)
    except Exception as error:  # whatever a library raises
        reason = " ".join(str(error).split()).rstrip(".")[:300]
        code = fail(f"The run failed ({type(error).__name__}: {reason}); --debug shows where.", 4, error, debug)
    sys.exit(code if isinstance(code, int) else OK)
