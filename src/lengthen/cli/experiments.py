"""The commands that train and judge in one go: the demonstration, rivals, studies; and the benchmark."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from lengthen.cli.configuration import prepare
from lengthen.cli.options import DEFAULTS, Common, check_steps, device_of
from lengthen.cli.output import Progress, show
from lengthen.cli.run_folders import STUDY_CELLS, run_folder


def demo(*, common: Common = DEFAULTS) -> None:
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
) -> None:
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


def study(
    name: str,
    *,
    seeds: int = 3,
    processes: int | None = None,
    markdown: bool = False,
    common: Common = DEFAULTS,
) -> None:
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


def bench(
    *ops: str,
    pairs: int = 5,
    memory: Annotated[bool, Parameter(negative="--no-memory")] = True,
    common: Common = DEFAULTS,
) -> None:
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
