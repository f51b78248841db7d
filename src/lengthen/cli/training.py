"""The commands that train: post-train and pretrain."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lengthen.cli.configuration import prepare
from lengthen.cli.options import DEFAULTS, Common, check_steps, device_of
from lengthen.cli.output import Progress, show
from lengthen.cli.run_folders import run_folder, write_page
from lengthen.errors import InputError

if TYPE_CHECKING:
    from lengthen.data import Corpus


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
) -> None:
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
    training = prepare(common, trains=True)
    from lengthen.models import load, tokenizer_for
    from lengthen.training import AUTO_STEPS, plan
    from lengthen.training import post_train as run

    if (data is None) == (task is None):
        raise InputError("Give either --data, a text to train on, or --task, a task whose samples to train on.")
    if processes != 1 and not dry_run:
        raise InputError("--processes is for --dry-run; start several processes with torchrun or accelerate launch.")
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
        return

    def source() -> Corpus | str:
        if task is None:
            assert data is not None
            return data
        from lengthen.tasks import training_samples, unfit

        samples = training_samples(
            task,
            train_context=train_context,
            count=rows * (AUTO_STEPS if steps == "auto" else steps),
            tokenizer=tokenizer or tokenizer_for(model),
            seed=common.seed,
            haystack=haystack,
        )
        reason = unfit(task, intervention)
        if reason is not None:
            print(f"lengthen: {reason}", file=sys.stderr)
        return samples

    with run_folder(out, "post-train", common, resume=resume, trains=True), Progress(common) as progress:
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
) -> None:
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
    training = prepare(common, trains=True)
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
    with run_folder(out, "pretrain", common, resume=resume, trains=True), Progress(common) as progress:
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
