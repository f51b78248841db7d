"""The study `rivals`: training-free methods, the control arm and state passing side by side on small models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lengthen.results import Rivals, RivalStudy, versions
from lengthen.studies.cells import CONTEXTS, SEQUENCES, corpora, train_base
from lengthen.studies.rival_models import BASES, TrainedArm, arm_model, base_model, took_of, train_arm
from lengthen.studies.settings import Base, Setting
from lengthen.studies.side_by_side import Stage, run_jobs, workers_for
from lengthen.training_free.contest import CONTROL, GIVEN, PASSED, Contestant, Course, contest
from lengthen.training_free.names import METHODS
from lengthen.training_free.splits import Splits

NAME = "rivals"
QUESTION = "What does post-training buy that methods without training do not, and do they add to it?"
CANDIDATES = [
    "constant-delta:ratio=0.5",
    "constant-delta:ratio=0.125",
    "reduced-retention",
    "reduced-retention:decay=0.99",
    "reduced-retention:decay=0.97,gain=1",
    "soft-reset:keep=0.25",
    "soft-reset:keep=0.5",
    "soft-reset:keep=0.75",
]
"""Settings between which the text to select by decides."""


@dataclass(frozen=True)
class RivalPlan:
    """bases: label -> base, and whether it runs under every seed or under the first alone. methods: as on the command
    line. n: sequences."""

    bases: dict[str, tuple[Base, bool]]
    methods: tuple[str, ...]
    n: int = SEQUENCES

    def runs(self, seeds: Sequence[int]) -> dict[str, list[tuple[Base, int]]]:
        """Label -> its base under each of its seeds."""
        return {
            label: [(base, seed) for seed in (seeds if every else seeds[:1])]
            for label, (base, every) in self.bases.items()
        }


def plan() -> RivalPlan:
    """The slow model under every seed, for it is what breaks; every method by its own settings, and some by chosen ones."""
    chosen = {text.partition(":")[0] for text in CANDIDATES}
    bases = {label: (base, label == "slow") for label, base in BASES.items()}
    return RivalPlan(bases, (*(name for name in METHODS if name not in chosen), *CANDIDATES))


def run_rivals(
    plan: RivalPlan, seeds: Sequence[int], cells: Path, processes: int | None = None, progress: Stage | None = None
) -> RivalStudy:
    """Runs what the folder `cells` does not hold yet, and puts all of it together."""
    cells.mkdir(parents=True, exist_ok=True)
    runs = plan.runs(seeds)
    pairs = [pair for of in runs.values() for pair in of]
    arms = [(arm, seed) for base, seed in pairs for arm in _arms(base).values()]
    untrained = [(b, seed) for b, seed in pairs if not (cells / f"{b.key(seed)}.safetensors").exists()]
    untrained_arms = [(a, seed) for a, seed in arms if not took_of(a, seed, cells).exists()]
    workers = workers_for(processes)
    run_jobs([(train_base, (base, seed, cells)) for base, seed in untrained], workers, "pre-train", progress)
    run_jobs([(train_arm, (arm, seed, cells)) for arm, seed in untrained_arms], workers, "post-train", progress)
    run_jobs([(judge, (plan, base, seed, cells)) for base, seed in pairs], workers, "judge", progress)
    found = {label: [judge(plan, base, seed, cells) for base, seed in of] for label, of in runs.items()}
    return RivalStudy(
        name=NAME,
        question=QUESTION,
        seeds=list(seeds),
        bases=found,
        configuration={label: Setting(base).describe() for label, (base, _) in plan.bases.items()},
        versions=versions(),
    )


def judge(plan: RivalPlan, base: Base, seed: int, cells: Path) -> Rivals:
    """One base's table under one seed, its rows kept in the folder."""
    training, held_out = corpora()
    contestants = [Contestant(GIVEN, base_model(base, seed, cells))]
    for label, arm in _arms(base).items():
        took = TrainedArm.load(took_of(arm, seed, cells))
        model = arm_model(arm, seed, cells)
        contestants.append(Contestant(label, model, took.tokens, took.steps, took.seconds))
    course = Course(Splits.of(held_out, training), base.train_context, CONTEXTS * base.train_context, plan.n, seed)
    return contest(contestants, plan.methods, course, name=base.key(seed), cells=cells)


def _arms(base: Base) -> dict[str, Setting]:
    return {CONTROL: Setting(base, "zero"), PASSED: Setting(base, "state-passing")}
