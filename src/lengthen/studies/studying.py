"""study(): a named sweep over seeds, a file a cell, so that one that was interrupted goes on where it stopped."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lengthen.errors import InputError
from lengthen.reporting import write_report
from lengthen.results import Arm, RivalStudy, Spread, Study, StudyRow, TaskStudy, versions
from lengthen.studies.cells import StudyCell, run_cell, train_base
from lengthen.studies.learning import run_lesson
from lengthen.studies.lessons import LESSONS
from lengthen.studies.named_studies import STUDIES
from lengthen.studies.rival_study import NAME as RIVALS
from lengthen.studies.rival_study import plan, run_rivals
from lengthen.studies.settings import StudyPlan
from lengthen.studies.side_by_side import Stage, run_jobs, workers_for


def study(
    name: str,
    *,
    seeds: int = 3,
    seed: int = 0,
    processes: int | None = None,
    out: str | Path | None = None,
    progress: Stage | None = None,
) -> Study | TaskStudy | RivalStudy:
    """Runs a named study on small models, and tells what each setting does: of STUDIES, on the bundled plays, of
    LESSONS, on samples of a task, or "rivals", methods without training against state passing.

    seeds: how many, from `seed` on; each seed has its own weights, order of windows and held-out sequences. processes:
    cells trained side by side, on one thread each (as many as there are CPUs unless said). out: a run folder:
    cells/ (one file a cell, and the pre-trained weights), results/NAME.json, figures/, report.html. What lies in cells/ is
    not computed again, so that the same call goes on where it was interrupted, and studies in one folder share what they
    have in common. Raises InputError for an unknown name, or where a library that a model needs is missing.
    """
    known = [*STUDIES, *LESSONS, RIVALS]
    if name not in known:
        raise InputError(f"There is no study {name!r}; choose one of {', '.join(known)}.")
    if seeds < 1:
        raise InputError(f"The number of seeds is {seeds}; give at least 1.")
    if processes is not None and processes < 1:
        raise InputError(f"The number of processes is {processes}; give at least 1.")
    with tempfile.TemporaryDirectory(prefix="lengthen-") as temporary:
        cells, every = Path(out if out is not None else temporary) / "cells", range(seed, seed + seeds)
        found: Study | TaskStudy | RivalStudy
        if name == RIVALS:
            found = run_rivals(plan(), every, cells, processes, progress)
        elif name in LESSONS:
            found = run_lesson(LESSONS[name], every, cells, processes, progress)
        else:
            found = run_study(STUDIES[name], every, cells, processes, progress)
    if out is not None:
        found.save(Path(out) / "results" / f"{name}.json")
        write_report(out)
    return found


def run_study(
    plan: StudyPlan, seeds: Sequence[int], cells: Path, processes: int | None = None, progress: Stage | None = None
) -> Study:
    """Runs what the folder `cells` does not hold yet of a plan, and puts all of it together."""
    cells.mkdir(parents=True, exist_ok=True)
    settings = plan.all_settings()
    missing = [(s, seed) for seed in seeds for s in settings if not (cells / f"{s.key(seed)}.json").exists()]
    bases = list(dict.fromkeys((s.base, seed) for s, seed in missing))
    bases = [(base, seed) for base, seed in bases if not (cells / f"{base.key(seed)}.safetensors").exists()]
    workers = workers_for(processes)
    run_jobs([(train_base, (base, seed, cells)) for base, seed in bases], workers, "pre-train", progress)
    run_jobs(
        [(run_cell, (setting, seed, cells)) for setting, seed in missing], workers, "post-train and judge", progress
    )
    return _together(plan, seeds, cells)


def _together(plan: StudyPlan, seeds: Sequence[int], cells: Path) -> Study:
    found = {
        (setting, seed): StudyCell.load(cells / f"{setting.key(seed)}.json")
        for setting in plan.all_settings()
        for seed in seeds
    }
    rows = []
    for label, setting in plan.settings.items():
        arms = [_arm(*(found[s, seed] for s in (setting, setting.before, setting.control))) for seed in seeds]
        controls = [found[setting.control, seed] for seed in seeds]
        rows.append(
            StudyRow(
                setting=list(label),
                arms=arms,
                in_context=_spread([a.in_context for a in arms]),
                far=_spread([a.far for a in arms]),
                own_reset=_spread([a.own_reset for a in arms]),
                far_over_before_reset=_spread([a.far_over_reset for a in arms]),
                far_over_control_reset=_spread([a.far / a.control_reset for a in arms]),
                in_context_over_control=_spread([a.in_context / c.in_context for a, c in zip(arms, controls)]),
                failed=[found[setting, seed].failed or "" for seed in seeds if found[setting, seed].failed],
            )
        )
    return Study(
        name=plan.name,
        question=plan.question,
        varies=list(plan.varies),
        seeds=list(seeds),
        rows=rows,
        seconds=sum(cell.seconds for cell in found.values()),
        configuration={" ".join(label): setting.describe() for label, setting in plan.settings.items()},
        versions=versions(),
    )


def _arm(own: StudyCell, before: StudyCell, control: StudyCell) -> Arm:
    return Arm(
        in_context=own.in_context,
        far=own.far,
        own_reset=own.own_reset,
        before_reset=before.own_reset,
        control_reset=control.own_reset,
        far_over_reset=own.far / before.own_reset,
        stderr=own.far_stderr,
        n=own.n,
    )


def _spread(values: Sequence[float]) -> Spread:
    """The geometric mean and the range of values above 0; NaN where one is not finite."""
    if not all(math.isfinite(value) for value in values):
        return Spread(math.nan, math.nan, math.nan)
    return Spread(math.exp(sum(map(math.log, values)) / len(values)), min(values), max(values))
