"""Made-up results of the demonstration's shape: small, whole, and the same every time."""

import math
import random
from itertools import pairwise

from lengthen.reporting.run_folder import Findings
from lengthen.results import (
    Arm,
    Bucket,
    Cell,
    Certificate,
    Check,
    CheckResult,
    Comparison,
    Demonstration,
    Diagnosis,
    Difference,
    Drift,
    Estimate,
    Evaluation,
    Forgetting,
    HeadDrift,
    HeadState,
    HeadUnderMethod,
    Patch,
    Patching,
    PositionPerplexity,
    Recommendation,
    Remembrance,
    RemembrancePoint,
    Result,
    Rival,
    Rivals,
    RivalStudy,
    SequenceLosses,
    Spread,
    Study,
    StudyRow,
    TaskStudy,
    TrainingRecord,
)

T, LAYERS, HEADS, N = 64, 2, 4, 16
EDGES = [0, 16, 32, 48, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096]
POSITIONS = [64, 256, 1024, 4096]
# What each arm's far perplexity and its state's growth are like.
SEVERITY = {"before": 3.2, "control": 2.9, "random_noise": 0.8, "fitted_noise": 0.3, "state_passing": 0, "tbptt": 0.02}
VERSIONS = {"lengthen": "0.1.0", "torch": "2.13.0"}
HOSTILE = "<script>alert(1)</script>\"'&</style><!--"


def findings(*results: Result) -> Findings:
    """Results as a run folder would give them, from file-0, file-1 and so on."""
    found = Findings()
    for i, result in enumerate(results):
        found.add(result, f"file-{i}")
    return found


def diagnosis(name: str = "before", severity: float = 3.2, *, layers: int = LAYERS, n: int = N) -> Diagnosis:
    """Loss that leaves the reset baseline by `severity` nats at 64 T."""
    buckets = []
    for start, end in pairwise(EDGES):
        reset = 1.69 + 0.9 * math.exp(-(start + end) / 40)
        excess = severity * max(0.0, math.log2((start + end) / 2 / T) / 6) ** 2
        loss, error = reset + excess, 0.02 + excess / 9
        paired = (excess, excess / 9, n, loss - 1.9 * error, loss + 2.1 * error, 0.8 * excess, 1.2 * excess)
        buckets.append(Bucket(start, end, loss, error, reset, 0.02, *paired))
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
        sequences=sequences(buckets),
        generalisation_length=192 if fails else 4096,
        far_over_own_reset=far / 5.42,
        far_over_own_reset_stderr=far / 5.42 / 20,
        remembrance=remembrance(severity),
        drift=drift(severity, layers),
        patching=patching(severity, layers) if fails else None,
        recommendation=RECOMMENDED if fails else None,
        configuration={"segment": 2048},
        versions=VERSIONS,
    )


def sequences(buckets: list[Bucket]) -> SequenceLosses:
    """Sequences of one difficulty each, whose means are the buckets'."""
    levels = [0.01 * (i - (N - 1) / 2) for i in range(N)]
    carried = [[b.loss + level + 0.3 * level * b.excess for b in buckets] for level in levels]
    return SequenceLosses(carried, [[b.own_reset_loss + level for b in buckets] for level in levels], "5f1c" * 16, 0)


def remembrance(severity: float) -> Remembrance:
    """What the past counts: little, until near the end; the more the worse."""
    points = [
        RemembrancePoint(end, start, min(0.9, (start / end) ** (1 + 8 / (1 + severity))), 0.01, N)
        for end in (1024, 4096)
        for start in (0, *(end - (1 << k) for k in reversed(range(0, end.bit_length() - 1, 2))))
    ]
    return Remembrance(points, 123456, 7890)


def drift(severity: float, layers: int) -> Drift:
    """Head 3 of layer 0 goes farthest."""
    heads = [
        HeadDrift(p, f"backbone.layers.{layer}.mixer", "ssm", head, distance, 0.5, distance > 0.5)
        for p in (T << k for k in range(7))
        for layer in range(layers)
        for head in range(HEADS)
        for distance in [0.2 + severity * (p / T - 1) * (1 + head) / (5 * (1 + 2 * layer))]
    ]
    forgetting = [
        Forgetting(f"backbone.layers.{layer}.mixer", "ssm", head, tokens, 2.0, 4)
        for layer in range(layers)
        for head in range(HEADS)
        for tokens in [None if head == 0 else 20.0 * 4**head / (1 + layer)]
    ]
    return Drift(0.01, 512, 200, N, heads, forgetting)


def patching(severity: float, layers: int) -> Patching:
    """Most of the harm is layer 0's, and of that head 3's."""
    names = [f"backbone.layers.{layer}.mixer" for layer in range(layers)]
    patches = [Patch(name, None, 0.9 / 4**i, 0.03) for i, name in enumerate(names)]
    patches += [Patch(names[0], head, 0.1 + 0.2 * head, 0.02) for head in reversed(range(HEADS))]
    return Patching(1024, 1024 + T, severity / 2, 0.01, N, patches)


RECOMMENDED = Recommendation(
    "fails past the training context",
    "The loss leaves the reset baseline and the state leaves what training shows.",
    "Post-train with state passing, 500 steps first.",
    "state-passing",
    500,
)


def training(name: str = "state-passing", steps: int = 500, first: float = 1.8) -> TrainingRecord:
    """A loss that falls, with noise."""
    draw = random.Random(f"{name} {steps}")
    losses = [1.66 + (first - 1.66) * math.exp(-step / 60) + draw.gauss(0, 0.04) for step in range(steps)]
    settings = {"intervention": {"name": name, "zero_fraction": 0.25}, "warmup": 0, "data": "5f1c"}
    return TrainingRecord(name, steps, T, 16, 3e-3, 1, 17.4, losses, "before", "", settings, VERSIONS, 0.73)


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
    certificates = [certificate(name) for name in SEVERITY if name not in ("before", "control")]
    return Demonstration(T, 151.0, 0, check(), arms, diagnoses, trainings, caveat, certificates, settings, VERSIONS)


def certificate(after: str = "state_passing", control: str | None = "control") -> Certificate:
    """Of two runs whose far excess losses are what SEVERITY says."""
    pairs = {("before", "before reset"): "before", ("after", "own reset"): after, ("after", "before reset"): after}
    if control is not None:
        pairs |= {("control", "control reset"): control, ("after", "control reset"): after}

    def difference(of: str, against: str, start: int, end: int) -> Difference:
        mean = SEVERITY[pairs[of, against]] * max(0.0, math.log2((start + end) / 2 / T) / 6) ** 2
        shares = [math.expm1(mean + sign * 0.03) for sign in (0, -1, 1)]
        return Difference("far", of, against, start, end, mean, 0.014, mean - 0.03, mean + 0.03, *shares, N)

    return Certificate(
        before="before",
        after=after,
        control=control,
        train_context=T,
        max_length=4096,
        n=N,
        seed=0,
        tokens="5f1c" * 16,
        overlap=0,
        loss="cross-entropy",
        repaired=SEVERITY[after] < 0.5,
        verdict="Repaired: no failure is left." if SEVERITY[after] < 0.5 else "Not repaired: it still fails.",
        differences=[difference(*pair, 2048, 4096) for pair in pairs],
        curves=[difference(*pair, start, end) for pair in pairs for start, end in pairwise(EDGES)],
    )


def comparison() -> Comparison:
    """Two runs that can be paired, and one that cannot."""
    runs = {"before": diagnosis("./a"), "state_passing": diagnosis("./b", 0), HOSTILE: diagnosis("./c", 0.2)}
    return Comparison(runs, [certificate(control=None)], {HOSTILE: "They were judged on different sequences."})


LENGTHS, DEPTHS = (1024, 4096, 1 << 20), (0, 0.5, 1)


def evaluation(model: str = "my-model") -> Evaluation:
    """Two tasks at depths of which one gets worse with the length, one at any depth, and one of prompts as given."""

    def cell(task: str, length: int, depth: float | None, accuracy: float) -> Cell:
        return Cell(task, length, depth, 50, accuracy, [0.9 * accuracy, min(1, 0.1 + accuracy)], "exact", length - 0.5)

    of_length = dict(zip(LENGTHS, (1.0, 0.86, 0.04)))
    falling = [cell("passkey", n, d, a * (1 - 0.1 * d)) for n, a in of_length.items() for d in DEPTHS]
    level = [cell("niah-single", n, d, 0.5) for n in LENGTHS for d in DEPTHS]
    anywhere = [cell("copying", n, None, a) for n, a in of_length.items()]
    over = [cell("passkey", n, None, a * 0.95) for n, a in of_length.items()]
    over += [cell("niah-single", n, None, 0.5) for n in LENGTHS]
    reached = {"passkey": 1024, "niah-single": None, "copying": 4096, HOSTILE: 0}
    given = [cell(HOSTILE, 0, None, 0.9)]
    cells = [*falling, *level, *anywhere, *given]
    return Evaluation(model, "mamba2", 0, cells, reached, 9_000_000, 5_000_000, over, {"n": 50}, VERSIONS)


def study(name: str = "rates", settings: tuple[tuple[str, str, float], ...] = ()) -> Study:
    """What is varied and the far perplexity, a row each; by default three rows, of which the last one's runs failed."""
    settings = settings or (("1e-3", "control", 54.0), ("1e-3", "state passing", 5.4), ("1", "control", math.nan))
    return Study(name, "Which rate?", ["rate", "arm"], [3, 4], [study_row(*s) for s in settings], 120.0)


def study_row(rate: str, arm: str, far: float) -> StudyRow:
    """From 0.9 to 1.2 times the mean, over two seeds."""

    def spread(middle: float) -> Spread:
        return Spread(middle, 0.9 * middle, 1.2 * middle)

    failed = [] if math.isfinite(far) else ["It is nan."] * 2
    arms = [Arm(5.0, far, 5.4, 5.4, 5.4, far / 5.4, 0.1, 16)] * 2
    ratios = [spread(far / 5.4), spread(far / 5.4), spread(1.02)]
    return StudyRow([rate, arm], arms, spread(5.0), spread(far), spread(5.4), *ratios, failed)


def task_study(accuracies: tuple[float, ...] = (0.2, 0.5)) -> TaskStudy:
    """An evaluation a seed and arm; after post-training every answer is right."""
    seeds = list(range(len(accuracies)))
    arms = {
        "before": [_answers(accuracy, seed) for seed, accuracy in enumerate(accuracies)],
        "TBPTT": [_answers(1.0, seed) for seed in seeds],
    }
    return TaskStudy("learn", "What is learnt?", 100, "accuracy", seeds, arms, 60.0)


def _answers(accuracy: float, seed: int) -> Evaluation:
    """All right at the training context of 100, and from 250 on what is given on average over two depths."""
    cells = [
        Cell("passkey", n, d, 49, a, [0.0, 1.0], "exact", n, a / 2)
        for n, mean in ((100, 1.0), (250, accuracy), (400, accuracy))
        for d, a in ((0.0, mean - 0.1 * mean), (1.0, mean + 0.1 * mean if mean < 1 else 1.0))
    ]
    return Evaluation("small", "mamba2", seed, cells, {"passkey": 100}, 1000, 1000)


def rivals(model: str = "stock", seed: int = 0, far: float = 20.0) -> Rivals:
    """A model as given, under a method, and post-trained under a method whose settings were chosen."""

    def row(name: str, method: str, tokens: int, far: float, settings: dict, **compared: Difference | None) -> Rival:
        heads = [
            HeadUnderMethod(
                "layers.0", "ssm", head, None if head == 3 else -(4.0**head), 2.0, 2.0 * (1 + head) * far / 10
            )
            for head in range(HEADS)
        ]
        estimates = Estimate(5.0, 4.8, 5.2), Estimate(far, 0.9 * far, 1.1 * far)
        work = (tokens, tokens // 64, tokens / 1000, 1.0 if method == "untouched" else 1.25)
        losses = [[math.log(p)] * N for p in (5.0, far)]
        return Rival(name, method, settings, *estimates, *work, heads, *losses, **compared)

    def over(of: str, change: float) -> Difference:
        loss = math.log(1 + change)
        edges = (change - 0.05, change + 0.05)
        return Difference("far", of, "reset", 2048, 4096, loss, 0.01, loss - 0.03, loss + 0.03, change, *edges, N)

    rows = [
        row("as given", "untouched", 0, far, {}, over_reset=over("as given", far / 5 - 1)),
        row(
            "as given",
            "soft-reset",
            4096,
            far / 2,
            {"rate": 0.5, "every": 64, "left": None},
            over_untouched=over("as given", 0.02),
            over_reset=over("as given", far / 10 - 1),
        ),
        row(
            "state passing",
            "hard-reset",
            1 << 20,
            5.0,
            {"every": 64},
            chosen=True,
            over_untouched=over("state passing", -0.01),
            over_reset=over("state passing", 0.0),
        ),
    ]
    left_out = {"narrow": "narrow needs a gate, and stock has none."}
    splits = {"fit": "5f1c" * 16, "choice": "6a2d" * 16, "judge": "7b3e" * 16}
    return Rivals(model, "mamba2", T, 4096, 2048, N, seed, "cross-entropy", rows, left_out, splits)


def rival_study() -> RivalStudy:
    """Two seeds of one base and one of another."""
    bases = {"slow": [rivals("slow", 0, 20.0), rivals("slow", 1, 80.0)], "mild": [rivals("mild", 0, 10.0)]}
    return RivalStudy("rivals", "What does post-training buy?", [0, 1], bases)
