"""The whole job on the bundled plays, live, in minutes on a CPU: a model that breaks, five arms, the proof.

A small Mamba-2 whose decays start slow is trained at T = 64, checked, diagnosed to 64 T, and post-trained in five arms
from the same weights with fresh optimisers: from zero (the control), random noise, fitted noise, passed states, and
TBPTT (over sections of 64 T, so that its lanes see as many texts). It shows a repair, not a good model: with the stock
initialisation a model trained as long in all needs no repair and is better, in context and far.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path

from torch import nn

from lengthen.data import HeldOutSequences, bundled_plays, load_corpus
from lengthen.diagnosis import certificate, diagnose
from lengthen.interventions import TBPTT, FittedNoise, Intervention, RandomNoise, StatePassing, Zero
from lengthen.models import check
from lengthen.reporting import write_report
from lengthen.results import Arm, Demonstration, Diagnosis, TrainingRecord, versions
from lengthen.training import Mamba2Recipe, Optimisation, pretrain, run_training

TRAIN_CONTEXT = 64
SEQUENCES = 32
PRETRAINING_STEPS = 1000
STEPS = 500
ROWS = 16
LEARNING_RATE = 3e-3
SLOW_DECAYS = (0.002, 0.05)
RECIPE = Mamba2Recipe(decay_range=SLOW_DECAYS)
CAVEAT = (
    "This demonstrates repair, not quality: the model is small (77 thousand parameters, bytes) and its decays start "
    "slow on purpose; with the stock initialisation a model trained as long in all needs no repair and is better."
)

Stage = Callable[[str, int, int], None]
"""Called with a stage's name, what is done of it and what there is to do."""


def arms(seed: int) -> dict[str, Intervention]:
    """The five arms, with fresh interventions."""
    return {
        "control": Zero(),
        "random_noise": RandomNoise(std=10.0, relative=True, seed=seed),
        "fitted_noise": FittedNoise(seed=seed),
        "state_passing": StatePassing(seed=seed),
        "tbptt": TBPTT(),
    }


def demo(*, seed: int = 0, out: str | Path | None = None, progress: Stage | None = None) -> Demonstration:
    """Runs the demonstration; with `out` the run folder (run.json, results/, figures/, model/, report.html) is written.

    The shuffled arms see the same windows in the same order, TBPTT as many tokens. Raises InputError where `out` cannot
    be written.
    """
    began = time.perf_counter()
    tell = progress or (lambda stage, done, todo: None)
    folder = Path(out) if out is not None else None
    training_plays, held_out_plays = bundled_plays()
    corpus, held_out = load_corpus(training_plays), load_corpus(held_out_plays)
    sections = corpus.sections(64 * TRAIN_CONTEXT + 1)  # TBPTT's lanes move on, rather than stay in sixteen plays
    tokens = HeldOutSequences(held_out, length=64 * TRAIN_CONTEXT, count=SEQUENCES, seed=seed)

    def judged(model: nn.Module, name: str) -> Diagnosis:
        return diagnose(
            model,
            tokens,
            train_context=TRAIN_CONTEXT,
            positions=[TRAIN_CONTEXT << k for k in range(0, 7, 2)],
            seed=seed,
            name=name,
            progress=lambda done, todo: tell(f"diagnose {name}", done, todo),
        )

    model, pretraining = pretrain(
        corpus,
        train_context=TRAIN_CONTEXT,
        steps=PRETRAINING_STEPS,
        recipe=RECIPE,
        rows=ROWS,
        seed=seed,
        progress=lambda done, todo: tell("pretrain", done, todo),
    )
    tell("check", 0, 1)
    parity = check(model, name="demonstration", seed=seed)
    tell("check", 1, 1)
    diagnoses = {"before": judged(model, "before")}
    trainings: dict[str, TrainingRecord] = {"before": pretraining}
    for name, intervention in arms(seed).items():
        arm = copy.deepcopy(model)
        trainings[name] = run_training(
            arm,
            sections if name == "tbptt" else corpus,
            intervention,
            Optimisation(steps=STEPS, rows=ROWS, learning_rate=LEARNING_RATE),
            train_context=TRAIN_CONTEXT,
            seed=seed + 1,
            name="before",
            progress=lambda done, todo, name=name: tell(f"post-train {name}", done, todo),  # type: ignore[misc]
        )
        diagnoses[name] = judged(arm, name)
        if folder is not None and name == "state_passing":
            arm.save_pretrained(folder / "model")  # type: ignore[operator]

    result = Demonstration(
        train_context=TRAIN_CONTEXT,
        seconds=time.perf_counter() - began,
        seed=seed,
        parity=parity,
        arms={name: _arm(diagnosis, diagnoses) for name, diagnosis in diagnoses.items()},
        diagnoses=diagnoses,
        trainings=trainings,
        caveat=CAVEAT,
        certificates=[
            certificate(*(diagnoses[arm] for arm in named), names=named)
            for named in (("before", name, "control") for name in arms(seed) if name != "control")
        ],
        configuration={
            "recipe": vars(RECIPE),
            "pretraining_steps": PRETRAINING_STEPS,
            "steps": STEPS,
            "rows": ROWS,
            "learning_rate": LEARNING_RATE,
            "sequences": SEQUENCES,
            "interventions": {name: intervention.describe() for name, intervention in arms(seed).items()},
        },
        versions=versions(),
    )
    if folder is not None:
        result.save(folder / "results" / "demonstration.json")
        write_report(folder)
    return result


def _arm(own: Diagnosis, all_: dict[str, Diagnosis]) -> Arm:
    before, control = all_["before"], all_["control"]
    figures = (own.in_context, own.far, own.far_stderr, own.own_reset, before.own_reset, control.own_reset)
    in_context, far, stderr, own_reset, before_reset, control_reset = (
        float("nan") if f is None else f for f in figures
    )
    return Arm(in_context, far, own_reset, before_reset, control_reset, far / before_reset, stderr, own.n)
