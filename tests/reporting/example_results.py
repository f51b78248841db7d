"""Made-up results of the demonstration's shape: small, whole, and the same every time."""

import math
import random
from itertools import pairwise

from lengthen.results import (
    Arm,
    Bucket,
    Check,
    CheckResult,
    Demonstration,
    Diagnosis,
    HeadState,
    PositionPerplexity,
    TrainingRecord,
)

T, LAYERS, HEADS, N = 64, 2, 4, 16
EDGES = [0, 16, 32, 48, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096]
POSITIONS = [64, 256, 1024, 4096]
# What each arm's far perplexity and its state's growth are like.
SEVERITY = {"before": 3.2, "control": 2.9, "random_noise": 0.8, "fitted_noise": 0.3, "state_passing": 0, "tbptt": 0.02}
VERSIONS = {"lengthen": "0.1.0", "torch": "2.13.0"}
HOSTILE = "<script>alert(1)</script>\"'&</style><!--"


def diagnosis(name: str = "before", severity: float = 3.2, *, layers: int = LAYERS, n: int = N) -> Diagnosis:
    """Loss that leaves the reset baseline by `severity` nats at 64 T."""
    buckets = []
    for start, end in pairwise(EDGES):
        reset = 1.69 + 0.9 * math.exp(-(start + end) / 40)
        excess = severity * max(0.0, math.log2((start + end) / 2 / T) / 6) ** 2
        buckets.append(Bucket(start, end, reset + excess, 0.02 + excess / 9, reset, 0.02, excess, excess / 9, n))
    states = [
        HeadState(p, f"backbone.layers.{layer}.mixer", "ssm", head, 0.0, std, 40 * std, 9 * std)
        for p in (T << k for k in range(7))
        for layer in range(layers)
        for head in range(HEADS)
        for std in [0.02 * (1 + layer) * (1 + 0.2 * head) * (p / T) ** (0.4 + severity / 10)]
    ]
    fails = severity > 0.5
    point = 256 if fails else None
    verdict = (
        "Fails: from position 256 (4 times the training context) the perplexity exceeds the reset baseline for good."
        if fails
        else "No failure up to 4,096 positions: past the training context of 64 the perplexity stays with the baseline."
    )
    far = math.exp(1.69 + severity)
    around = [PositionPerplexity(p, p - p // 8, p, far * p / 4096 + 5, 0.2, n) for p in POSITIONS]
    numbers = (5.2, 0.1, far, far / 9, 5.42)
    return Diagnosis(
        name,
        "mamba2",
        T,
        4096,
        n,
        0,
        buckets,
        *numbers,
        point,
        fails,
        verdict,
        around,
        states,
        {"segment": 2048},
        VERSIONS,
    )


def training(name: str = "state-passing", steps: int = 500, first: float = 1.8) -> TrainingRecord:
    """A loss that falls, with noise."""
    draw = random.Random(f"{name} {steps}")
    losses = [1.66 + (first - 1.66) * math.exp(-step / 60) + draw.gauss(0, 0.04) for step in range(steps)]
    settings = {"intervention": {"name": name, "zero_fraction": 0.25}, "warmup": 0, "data": "5f1c"}
    return TrainingRecord(name, steps, T, 16, 3e-3, 1, 17.4, losses, "before", "", settings, VERSIONS)


def check(model: str = "demonstration", *, passed: bool = True) -> CheckResult:
    """Three checks, one of which may have failed."""
    carried = "If segments of odd sizes differ from one run, long texts are read wrongly wherever they are cut."
    checks = [
        Check("segments", passed, 1.3e-7 if passed else 0.41, 2e-5, carried),
        Check("padding-left", True, 0.0, 0.0, "If padding changes the state, a padded batch remembers it."),
        Check("keywords", True, None, None, "If an unknown keyword is swallowed, the state is dropped silently."),
    ]
    return CheckResult(model, "mamba2", passed, checks)


def demonstration() -> Demonstration:
    """All six arms."""
    diagnoses = {name: diagnosis(name, severity) for name, severity in SEVERITY.items()}
    resets = diagnoses["before"].own_reset or math.nan
    arms = {
        name: Arm(d.in_context, d.far, d.own_reset, resets, resets, d.far / resets, d.far_stderr, d.n)
        for name, d in diagnoses.items()
    }
    trainings = {name: training(name.replace("_", "-")) for name in SEVERITY}
    trainings["before"] = training("zero", 1000, first=5.5)
    caveat = "This demonstrates repair, not quality: a model with the stock initialisation is better everywhere."
    settings = {"recipe": {"width": 64, "decay_range": [0.005, 0.1]}, "steps": 500}
    return Demonstration(T, 151.0, 0, check(), arms, diagnoses, trainings, caveat, settings, VERSIONS)
