"""What was found out, as plain data with a JSON form: nothing here computes, and a page only shows it."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from lengthen.errors import InputError, RunError

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Result:
    """The base of every result: to_json(), save(path) and load(path)."""

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers; a number that is not finite becomes null (JSON has none)."""
        return _plain(self)

    def save(self, path: str | Path) -> Path:
        """Writes the result as JSON (with "schema_version" and "kind"): whole or not at all."""
        document = {"schema_version": SCHEMA_VERSION, "kind": type(self).__name__, **self.to_json()}
        return write_text(Path(path), json.dumps(document, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads what save() wrote; another kind, schema or a damaged file is an InputError."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path} is not a readable result file ({error}); run the command that writes it again."
            ) from None
        kind, version = document.pop("kind", None), document.pop("schema_version", None)
        if kind != cls.__name__ or version != SCHEMA_VERSION:
            raise InputError(
                f"{path} holds {kind} (schema {version}), but {cls.__name__} (schema {SCHEMA_VERSION}) was expected; "
                "run the command that writes it again."
            )
        return _build(cls, document)


@dataclass(frozen=True)
class Check(Result):
    """One property of a model's state: what was measured, against what, and what a failure does to the user."""

    name: str
    passed: bool
    value: float | None
    tolerance: float | None
    meaning: str


@dataclass(frozen=True)
class CheckResult(Result):
    """All checks of one model."""

    model: str
    family: str
    passed: bool
    checks: list[Check]


@dataclass(frozen=True)
class SupportedClass(Result):
    """A library's model class: its recurrent layers, the kernels they run on, and which properties were verified."""

    library: str
    model: str
    layers: list[str]
    family: str
    kernels: list[str]
    verified: dict[str, bool]


@dataclass(frozen=True)
class SupportTable(Result):
    """All classes that are supported; refused: class -> why."""

    classes: list[SupportedClass]
    refused: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bucket(Result):
    """Mean loss (nats a token, if it is cross-entropy) over positions [start, end): of one run, and of the same tokens
    with the state zeroed every T inputs (own_reset). stderr is over n sequences; excess = loss - own_reset_loss, paired.
    low and high: 95 % bands by the bootstrap over sequences."""

    start: int
    end: int
    loss: float
    stderr: float
    own_reset_loss: float
    own_reset_stderr: float
    excess: float
    excess_stderr: float
    n: int
    low: float = math.nan
    high: float = math.nan
    excess_low: float = math.nan
    excess_high: float = math.nan


@dataclass(frozen=True)
class PositionPerplexity(Result):
    """Perplexity around one position: over [start, end)."""

    position: int
    start: int
    end: int
    perplexity: float
    stderr: float
    n: int


@dataclass(frozen=True)
class HeadState(Result):
    """One head's recurrent state before input `position`: mean, standard deviation and root mean square norm over
    entries and sequences, and the largest absolute entry."""

    position: int
    layer: str
    tensor: str
    head: int
    mean: float
    std: float
    norm: float
    largest: float


@dataclass(frozen=True)
class RemembrancePoint(Result):
    """EffRem_end(start): how far the prediction after `end` tokens moves when those before `start` are dropped: total
    variation between the two distributions of the next token, 0 to 1, the mean over n sequences."""

    end: int
    start: int
    mean: float
    stderr: float
    n: int


@dataclass(frozen=True)
class Remembrance(Result):
    """Effective remembrance at several ends and starts. tokens: inputs processed; state_bytes: the most memory that
    states took at once, which grows with the length where attention keeps a cache."""

    points: list[RemembrancePoint]
    tokens: int
    state_bytes: int


@dataclass(frozen=True)
class HeadDrift(Result):
    """How far a head's states before input `position` lie from any that training shows (distance, in standard deviations
    of those), and how far states from within the training context may lie by chance (limit)."""

    position: int
    layer: str
    tensor: str
    head: int
    distance: float
    limit: float
    outside: bool


@dataclass(frozen=True)
class Forgetting(Result):
    """After how many tokens what a head holds has decayed to 1/e; None where it does not within a usable measure.
    stderr is over n sequences."""

    layer: str
    tensor: str
    head: int
    tokens: float | None
    stderr: float | None
    n: int


@dataclass(frozen=True)
class Drift(Result):
    """Where the recurrent state leaves what training shows. level: the chance that states from within the training
    context have any head outside; windows: how many training windows say what it shows; draws: how many groups of n
    states the limits rest on. forgetting: how long each head remembers."""

    level: float
    windows: int
    draws: int
    n: int
    heads: list[HeadDrift]
    forgetting: list[Forgetting]


@dataclass(frozen=True)
class Patch(Result):
    """One layer's state (one head's, where head is given) replaced by that of a run of T tokens over the same text: the
    share of the excess loss that goes away, and its standard error."""

    layer: str
    head: int | None
    share: float
    stderr: float


@dataclass(frozen=True)
class Patching(Result):
    """State patching at `position`, judged over [position, end). excess: loss with the state carried over that with all
    layers patched, in nats a token; patches: layers, then heads of the first of them, the largest share first."""

    position: int
    end: int
    excess: float
    excess_stderr: float
    n: int
    patches: list[Patch]


@dataclass(frozen=True)
class SequenceLosses(Result):
    """Each sequence's mean loss over each bucket (a list a sequence), so that another model's on the same sequences can be
    paired with it. tokens: sha256 of what the sequences hold; overlap: the most positions that two of them share, None
    where that is not known."""

    carried: list[list[float]]
    own_reset: list[list[float]]
    tokens: str
    overlap: int | None


@dataclass(frozen=True)
class Recommendation(Result):
    """What to do, from a diagnosis alone. rule: the rule that led to it; finding: the facts it rests on; advice: what
    follows; intervention and steps: what to post-train with first, where that is the advice."""

    rule: str
    finding: str
    advice: str
    intervention: str | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Diagnosis(Result):
    """How far a model generalises: position-wise loss against own_reset, break point, verdict.

    loss: what the losses are. in_context, far, own_reset, unigram and positions are perplexities where it is
    cross-entropy, and mean losses where it is anything else. generalisation_length: the largest position up to which
    they stay within 2 % of own_reset. far_over_own_reset: their ratio over [32 T, 64 T), paired. unigram: what the best
    prediction without any context would reach on the same tokens. remembrance, drift and patching are None where they
    were not asked for or do not apply."""

    model: str
    family: str
    train_context: int
    max_length: int
    n: int
    seed: int
    buckets: list[Bucket]
    in_context: float | None
    in_context_stderr: float | None
    far: float | None
    far_stderr: float | None
    own_reset: float | None
    break_point: int | None
    fails: bool | None
    verdict: str
    positions: list[PositionPerplexity]
    states: list[HeadState]
    loss: str = "cross-entropy"
    sequences: SequenceLosses | None = None
    generalisation_length: int | None = None
    far_over_own_reset: float | None = None
    far_over_own_reset_stderr: float | None = None
    unigram: float | None = None
    remembrance: Remembrance | None = None
    drift: Drift | None = None
    patching: Patching | None = None
    recommendation: Recommendation | None = None
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference(Result):
    """How far the loss `of` one run lies above that `against` which it is held, over positions [start, end) of the same
    sequences: the paired mean over n sequences, its standard error and 95 % interval [low, high], in the losses' unit.
    change: the same as a share of what is told (0.02: perplexity is 2 % higher), with its 95 % interval. With fewer than
    16 sequences there is no interval."""

    name: str
    of: str
    against: str
    start: int
    end: int
    difference: float
    stderr: float
    low: float | None
    high: float | None
    change: float
    change_low: float | None
    change_high: float | None
    n: int


@dataclass(frozen=True)
class Certificate(Result):
    """What post-training did, on the same sequences before, after, and (where there is one) in the control arm.

    differences: in context and far, paired; curves: the same for each bucket. repaired: whether a model that failed no
    longer does; None where it did not fail or there is no verdict."""

    before: str
    after: str
    control: str | None
    train_context: int
    max_length: int
    n: int
    seed: int
    tokens: str
    overlap: int | None
    loss: str
    repaired: bool | None
    verdict: str
    differences: list[Difference]
    curves: list[Difference]


@dataclass(frozen=True)
class Comparison(Result):
    """Runs side by side, and a certificate for each that could be paired with the first; unpaired: run -> why not."""

    runs: dict[str, Diagnosis]
    certificates: list[Certificate]
    unpaired: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Arm(Result):
    """One arm of an experiment. Perplexities; far_over_reset = far / before_reset; stderr is far's, in perplexity."""

    in_context: float
    far: float
    own_reset: float
    before_reset: float
    control_reset: float
    far_over_reset: float
    stderr: float
    n: int


@dataclass(frozen=True)
class TrainingRecord(Result):
    """One training run: what was done, the loss per step, the time."""

    intervention: str
    steps: int
    train_context: int
    rows: int
    learning_rate: float
    seed: int
    seconds: float
    losses: list[float]
    model: str
    out: str
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Demonstration(Result):
    """The whole job on the bundled text: a small slow-decay model, five arms, each diagnosed, and a certificate for each
    but the control."""

    train_context: int
    seconds: float
    seed: int
    parity: CheckResult
    arms: dict[str, Arm]
    diagnoses: dict[str, Diagnosis]
    trainings: dict[str, TrainingRecord]
    caveat: str
    certificates: list[Certificate] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Spread(Result):
    """A figure over seeds: its geometric mean, the least and the greatest; NaN where a run failed."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class StudyRow(Result):
    """One setting of a study. setting: the values of what varies; arms: one per seed; failed: what runs that failed said.

    The last three spreads are of ratios taken seed by seed: far over the reset baselines of the weights before
    post-training and of the control arm (trained as long from the zero state), in context over the control arm's."""

    setting: list[str]
    arms: list[Arm]
    in_context: Spread
    far: Spread
    own_reset: Spread
    far_over_before_reset: Spread
    far_over_control_reset: Spread
    in_context_over_control: Spread
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Study(Result):
    """A sweep over settings and seeds. varies: what the values in StudyRow.setting are of; seconds: of CPU time, all
    cells together; configuration: each setting in full."""

    name: str
    question: str
    varies: list[str]
    seeds: list[int]
    rows: list[StudyRow]
    seconds: float
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell(Result):
    """One task at one length and depth (None: facts at random depths). n: haystacks; accuracy: the mean over them of the
    share of questions answered right by the named scoring; interval: Wilson's, 95 %. tokens: of a prompt, on average.
    token_accuracy: where scoring is exact, the share of the answers' tokens that are right when those before are given."""

    task: str
    length: int
    depth: float | None
    n: int
    accuracy: float
    interval: list[float]
    scoring: str
    tokens: float
    token_accuracy: float | None = None


@dataclass(frozen=True)
class Evaluation(Result):
    """Long-context tasks, cell by cell. effective_lengths: task -> the largest length up to which its accuracy over all
    depths is at least 0.85 at every tested length (None: not even the shortest). tokens: of all prompts;
    tokens_processed: how many of them were run, what prompts share once. over_depths: of tasks at several depths the mean
    over them, as a cell of depth None for each length."""

    model: str
    family: str
    seed: int
    cells: list[Cell]
    effective_lengths: dict[str, int | None]
    tokens: int
    tokens_processed: int
    over_depths: list[Cell] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskStudy(Result):
    """What small models that learnt a task at the training context make of it beyond, by arm. arms: label -> an evaluation
    per seed, "before" the model that had learnt it; measured: which of a cell's figures is told, accuracy or
    token_accuracy; seconds: of CPU time, all arms together; configuration: each arm in full."""

    name: str
    question: str
    train_context: int
    measured: str
    seeds: list[int]
    arms: dict[str, list[Evaluation]]
    seconds: float
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Estimate(Result):
    """A mean over sequences as losses are told (perplexity, if they are cross-entropy) with Student's 95 % interval, which
    fewer than 16 sequences do not give."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class HeadUnderMethod(Result):
    """One head while a run to L lasts. log_decay: the sum of its log-decays over all L positions, the mean over sequences
    and channels, None where it has none; what a method multiplies a state by now and then is not in it. norm_in_context,
    norm_far: the root mean square over sequences of its state's norm at T and at L."""

    layer: str
    tensor: str
    head: int
    log_decay: float | None
    norm_in_context: float
    norm_far: float


@dataclass(frozen=True)
class Rival(Result):
    """One model run under one method, fitted to it; "untouched" under none.

    in_context: windows of T from the zero state; far: with the state carried. tokens, forwards, seconds (of CPU time): what
    the model's post-training, the fit and the choice of settings took, each step of training a forward. cost: CPU time a
    token under the method, over that without it, in the same run. losses_in_context, losses_far: mean losses sequence by
    sequence. chosen: whether the settings are those of several that did best on a text to choose by. over_untouched: in
    context, against the same model without a method; over_reset: far, against the yardstick,
    the control arm with its state zeroed every T. Both are paired."""

    model: str
    method: str
    settings: dict[str, Any]
    in_context: Estimate
    far: Estimate
    tokens: int
    forwards: int
    seconds: float
    cost: float
    heads: list[HeadUnderMethod]
    losses_in_context: list[float]
    losses_far: list[float]
    chosen: bool = False
    over_untouched: Difference | None = None
    over_reset: Difference | None = None


@dataclass(frozen=True)
class Rivals(Result):
    """Ways to use a model past its training context T side by side, on the same sequences of L positions: as it is, under
    training-free methods, after post-training, and after that under each method, fitted anew. far: positions
    [far_start, L). splits: what the three texts hold (sha256), of which no two share a position. left_out: method -> why
    it is not there."""

    model: str
    family: str
    train_context: int
    max_length: int
    far_start: int
    n: int
    seed: int
    loss: str
    rivals: list[Rival]
    left_out: dict[str, str]
    splits: dict[str, str]
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RivalStudy(Result):
    """Rivals on several small models. bases: label -> a table per seed; configuration: each base in full."""

    name: str
    question: str
    seeds: list[int]
    bases: dict[str, list[Rivals]]
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Conversion(Result):
    """A checkpoint written in another library's format, and how far the logits of the two models are apart."""

    source: str
    destination: str
    source_format: str
    destination_format: str
    family: str
    tensors: int
    parameters: int
    dtypes: list[str]
    tokens: int
    largest_logit_difference: float


@dataclass(frozen=True)
class TrainingPlan(Result):
    """A run's size. Bytes are of one process, which takes `rows` of the step's rows at a time.

    weights, gradients, optimiser (two moments): parameters times their size, shared by the processes where the model is
    sharded. states: a row's state times the rows at hand, once going in and once coming out. bank: a row's state times
    the process's lanes, where the intervention keeps states. activations: twice what every linear layer of a block
    reads and writes, per position (what autograd keeps is 1.2 to 2.4 times that, by family); with checkpointing the
    blocks' inputs, and one block's. It leaves out what kernels and allocators take for a moment.
    """

    model: str
    parameters: int
    processes: int
    sharded: bool
    steps: int
    tokens: int
    tokens_a_step: int
    rows: int
    state_bytes_a_row: int
    weights: int
    gradients: int
    optimiser: int
    states: int
    bank: int
    activations: int
    memory: int


@dataclass(frozen=True)
class BenchmarkEntry(Result):
    """One comparison: how many times faster than the peer, by CPU time, and how much less memory a step takes.

    ratio is the median over interleaved pairs of the peer's CPU time over ours; memory_ratio the peer's extra peak
    memory over ours; ceiling_share the share of the fp32 matrix-product rate, measured in the same run, that our
    matrix products reach over the whole time. None where it was not measured.
    """

    op: str
    shape: str
    length: int
    mode: str
    peer: str
    ratio: float
    memory_ratio: float | None
    ceiling_share: float | None
    positions_per_second: float


@dataclass(frozen=True)
class BenchmarkResult(Result):
    """Every comparison that could run, and why the others could not."""

    threads: int
    pairs: int
    matrix_gflops: float
    entries: list[BenchmarkEntry]
    left_out: list[str] = field(default_factory=list)


def versions() -> dict[str, str]:
    """The versions a number depends on."""
    import platform
    from importlib.metadata import version

    names = ["lengthen", "torch", "transformers", "accelerate", "numpy"]
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except Exception:
            found[name] = "not installed"
    return found


def write_text(path: Path, text: str) -> Path:
    """Writes a text file whole or not at all: to a temporary name beside it, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True) if temporary.parent.is_dir() else None
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(f"{path} cannot be written: the disk is full.") from None
        raise InputError(f"{path} cannot be written ({error.strerror or error}); choose another --out.") from None
    return path


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def _build(kind: Any, value: Any) -> Any:
    """The inverse of _plain, by the dataclasses' own annotations."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _build(hints[name], item) for name, item in value.items()})
    if origin is list:
        return [_build(typing.get_args(kind)[0], item) for item in value]
    if origin is dict:
        return {key: _build(typing.get_args(kind)[1], item) for key, item in value.items()}
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _build(next(k for k in typing.get_args(kind) if k is not type(None)), value)
    if kind is float and value is None:
        return math.nan
    return value
