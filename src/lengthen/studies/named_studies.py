"""The named studies: which settings each compares, and the question it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lengthen.studies.recipes import GatedDeltaNetRecipe, GLARecipe, Mamba1Recipe, RWKV6Recipe
from lengthen.studies.settings import SLOW, Base, Setting, StudyPlan

PASSING, PLAIN = "state-passing", "state-passing:zero_fraction=0,p_zero=0"
ARMS = {
    "control": "zero",
    "random noise": "random-noise",
    "fitted noise": "fitted-noise",
    "state passing": PASSING,
    "TBPTT": "tbptt",
}
FAMILIES = {
    "Mamba-2": Base(),
    "Mamba-1": Base(Mamba1Recipe()),
    "GLA": Base(GLARecipe(), train_context=32, rows=32, steps=400),
    "RWKV-6": Base(RWKV6Recipe(), train_context=32, rows=32, steps=400, learning_rate=1e-2),
    "Gated DeltaNet": Base(GatedDeltaNetRecipe(), train_context=32, rows=32, steps=600),
}
MIXTURES = {
    "passed": PLAIN,
    "¼ zero, ¾ passed": "state-passing:p_zero=0",
    "½ zero, ½ passed": "state-passing:zero_fraction=0.5,p_zero=0",
    "½ noise, ½ passed": f"0.5 fitted-noise + 0.5 {PLAIN}",
    "¼ zero, ¼ noise, ½ passed": f"0.25 zero + 0.25 fitted-noise + 0.5 {PLAIN}",
    "¼ zero, ½ noise, ¼ passed": f"0.25 zero + 0.5 fitted-noise + 0.25 {PLAIN}",
    "½ zero, ¼ noise, ¼ passed": f"0.5 zero + 0.25 fitted-noise + 0.25 {PLAIN}",
    "TBPTT": "tbptt",
    "¼ zero, ¾ TBPTT": "0.25 zero + 0.75 tbptt",
}
"""Shares of the rows that start from zero, from fitted noise, and from passed states."""


def _interventions() -> StudyPlan:
    settings = {("0", "before"): Setting().before}
    settings |= {
        (str(steps), label): Setting(intervention=text, steps=steps)
        for steps in (50, 100, 200, 500)
        for label, text in ARMS.items()
    }
    question = "Which initial states repair, and after how many steps?"
    return StudyPlan("interventions", question, ("steps", "arm"), settings)


def _of_passing(name: str, question: str, varied: str, texts: Mapping[str, str], steps: Sequence[int]) -> StudyPlan:
    """The control and one intervention per value of what varies, at each number of steps."""
    settings = {
        (label, str(count)): Setting(intervention=text, steps=count)
        for count in steps
        for label, text in {"control": "zero", **texts}.items()
    }
    return StudyPlan(name, question, (varied, "steps"), settings)


def _of_bases(name: str, question: str, varied: str, bases: Mapping[str, Base]) -> StudyPlan:
    """Before, control and state passing for each base."""
    settings = {
        (label, arm): made
        for label, base in bases.items()
        for arm, made in (
            ("before", Setting(base).before),
            ("control", Setting(base).control),
            ("state passing", Setting(base)),
        )
    }
    return StudyPlan(name, question, (varied, "arm"), settings)


def _learning_rate() -> StudyPlan:
    settings = {
        (f"{rate:g}", label): Setting(intervention=text, learning_rate=rate)
        for rate in (3e-4, 1e-3, 3e-3, 1e-2)
        for label, text in (("control", "zero"), ("state passing", PASSING))
    }
    return StudyPlan("learning-rate", "Which peak learning rate repairs best?", ("learning rate", "arm"), settings)


def _mixtures() -> StudyPlan:
    settings = {
        (family, label): Setting(FAMILIES[family], text)
        for family in ("Mamba-2", "GLA", "Gated DeltaNet")
        for label, text in {"control": "zero", **MIXTURES}.items()
    }
    question = "Does any mixture beat plain state passing both in context and far?"
    return StudyPlan("mixtures", question, ("family", "initial states"), settings)


def _default() -> StudyPlan:
    arms = {
        "control": "zero",
        "¼ zero": MIXTURES["¼ zero, ¾ passed"],
        "¼ zero, ¼ noise": MIXTURES["¼ zero, ¼ noise, ½ passed"],
        "by chance from zero": "state-passing:zero_fraction=0,p_zero=0.02",
        "¼ zero, and by chance": PASSING,
    }
    settings = {
        (family, label): Setting(base, text) for family, base in FAMILIES.items() for label, text in arms.items()
    }
    question = "Which rows should start from zero, so that state passing is good at both ends in every family?"
    return StudyPlan("default", question, ("family", "initial states"), settings)


STUDIES = {
    plan.name: plan
    for plan in (
        _interventions(),
        _of_passing(
            "zero-fraction",
            "How many rows should always start from zero?",
            "zero fraction",
            {f"{share:g}": f"state-passing:zero_fraction={share:g},p_zero=0" for share in (0, 0.125, 0.25, 0.5)},
            (100, 500, 1000),
        ),
        _of_passing(
            "p-zero",
            "What if each row starts from zero by chance, instead of a fixed share of the rows?",
            "p zero",
            {f"{p:g}": f"state-passing:zero_fraction=0,p_zero={p:g}" for p in (0, 0.02, 0.1, 0.5)},
            (100, 500),
        ),
        _of_passing(
            "noise-std",
            "How large should random noise be, in units of the final states' standard deviation?",
            "std",
            {f"{std}": f"random-noise:std={std}.0,relative=true" for std in (1, 3, 10, 30)},
            (100, 500),
        ),
        _of_passing(
            "fitted-noise-window",
            "Over how many steps should the noise be fitted?",
            "steps of the window",
            {f"{1 / (1 - m):.0f}": f"fitted-noise:momentum={m:g}" for m in (0, 0.5, 0.9, 0.99, 0.999)},
            (100, 500),
        ),
        _of_passing(
            "chain-depth",
            "Through how many windows must a passed state have gone?",
            "most windows behind a state",
            {f"{depth - 1}": f"short-chains:depth={depth}" for depth in (2, 4, 8, 16, 64)} | {"no limit": PLAIN},
            (500,),
        ),
        _of_passing(
            "window-state",
            "Does it matter whether the window state (the convolution's inputs) is passed as well?",
            "window state",
            {"zeroed": PASSING, "passed": "state-passing:window_state=true"},
            (100, 500),
        ),
        _of_bases(
            "train-context",
            "Does a shorter training context make the failure worse (4,096 bytes a step)?",
            "training context",
            {f"{t:,}": Base(train_context=t, rows=4096 // t, steps=500) for t in (32, 64, 128, 256, 1024)},
        ),
        _of_bases(
            "training-tokens",
            "Does longer pre-training make the failure worse?",
            "pre-training tokens",
            {f"{steps * 1024:,}": Base(steps=steps) for steps in (500, 1000, 2000, 4000)},
        ),
        _of_bases(
            "model-size",
            "Do larger models fail worse?",
            "width × layers",
            {
                f"{width} × {layers}": Base(replace(SLOW, width=width, layers=layers))
                for width, layers in ((32, 1), (32, 2), (64, 2), (128, 2), (128, 4))
            },
        ),
        _learning_rate(),
        _of_bases(
            "state-size",
            "Do larger states fail worse?",
            "state size",
            {f"{size}": Base(replace(SLOW, state_size=size)) for size in (16, 64, 256)},
        ),
        _of_bases("families", "Do other families fail alike, and are they repaired alike?", "family", FAMILIES),
        _mixtures(),
        _default(),
    )
}
"""Name -> plan."""
