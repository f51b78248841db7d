"""Where a training window's initial state comes from (Buitrago Ruiz and Gu, arXiv 2507.02782, section 4).

Every intervention has three verbs: give the initial state for these rows, observe their final state, save and restore
itself. No gradient flows through an initial state.

    intervention = StatePassing()
    for step, batch in enumerate(windows):
        rows = Rows.of(batch, step, shuffled=True)
        output = model(batch["input_ids"], shift_labels=batch["labels"],
                       initial_state=intervention.initial_state(rows, zero_state(model, len(rows))))
        output.loss.backward(); optimizer.step(); optimizer.zero_grad()
        intervention.observe(rows, output.final_state)
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lengthen.errors import InputError
from lengthen.state import RecurrentState, TensorSpec, heads_of
from lengthen.state_bank import Provenance, StateBank, as_lanes


@dataclass(frozen=True)
class Rows:
    """The rows of one (micro-)batch.

    lane: int64 [B], global and each once in a step. start: bool [B], the window begins its document. step: the
    optimiser step. lanes: how many lanes there are over all micro-batches and processes. shuffled: rows of
    consecutive steps do not continue each other. tokens: positions of a window. document, offset: int64 [B] or None.
    origin: what lane ids count from, so that draws differ between the parts of a mixture.
    """

    lane: Tensor
    start: Tensor
    step: int
    lanes: int
    shuffled: bool
    tokens: int = 0
    document: Tensor | None = None
    offset: Tensor | None = None
    origin: int = 0

    @staticmethod
    def of(batch: Mapping[str, Any], step: int, *, shuffled: bool, lanes: int | None = None) -> Rows:
        """The rows of a batch of lengthen.data's windows (lane, start, and where they have them document, offset).

        shuffled: as the windows are (windows.shuffled). lanes: over all micro-batches and processes, where the batch
        is not the whole step.
        """
        lane = batch["lane"]
        inputs = batch["input_ids"] if "input_ids" in batch else batch["inputs"]
        return Rows(
            lane=lane,
            start=batch["start"],
            step=step,
            lanes=lanes if lanes is not None else len(lane),
            shuffled=shuffled,
            tokens=inputs.shape[1],
            document=batch.get("document"),
            offset=batch.get("offset"),
        )

    def __len__(self) -> int:
        return len(self.lane)

    def index(self, rows: Tensor) -> Rows:
        """These rows only."""

        def pick(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[rows.to(value.device)]

        lane, start = self.lane[rows.to(self.lane.device)], self.start[rows.to(self.start.device)]
        return replace(self, lane=lane, start=start, document=pick(self.document), offset=pick(self.offset))


class Intervention(ABC):
    """Gives initial states, observes final states, saves and restores itself."""

    name: str

    @abstractmethod
    def initial_state(self, rows: Rows, zero: RecurrentState) -> RecurrentState | None:
        """The initial state of these rows (None: zero). zero: the zero state for them, which tells the layout."""

    @abstractmethod
    def observe(self, rows: Rows, final_state: RecurrentState) -> None:
        """Sees what these rows ended with."""

    def advance(self, step: int, zero: RecurrentState) -> None:
        """A step begins in which this process has no rows of this intervention (a part of a mixture)."""

    def save(self, directory: str | Path) -> None:
        """Writes what the intervention has learnt into a directory (nothing, where it has nothing)."""

    def load(self, directory: str | Path) -> None:
        """Restores what save() wrote."""

    def describe(self) -> dict[str, Any]:
        """Name and settings, as plain data."""
        settings = {k: v for k, v in vars(self).items() if not k.startswith("_") and isinstance(v, int | float | str)}
        return {"name": self.name, **settings}


class Zero(Intervention):
    """The zero state: ordinary training, the control arm."""

    name = "zero"

    def initial_state(self, rows: Rows, zero: RecurrentState) -> None:
        return None

    def observe(self, rows: Rows, final_state: RecurrentState) -> None:
        pass


class RandomNoise(Intervention):
    """Independent N(0, std^2) in every recurrent entry where noise may stand; windows start at zero.

    std: of the noise. relative=True: std counts in units of the mean standard deviation (over layers and heads) of the
    first step's final states; that step starts from zero.
    """

    name = "random-noise"

    def __init__(self, std: float, relative: bool = False, seed: int = 0) -> None:
        if not std > 0:
            raise InputError(f"The noise's std is {std}; give a number above 0.")
        self.std, self.relative, self.seed = std, relative, seed
        self._moments = Moments(0.0) if relative else None

    def initial_state(self, rows: Rows, zero: RecurrentState) -> RecurrentState | None:
        scale = self.std
        self.advance(rows.step, zero)
        if self._moments is not None:
            if self._moments.mean is None:
                return None
            stds = [s.flatten() for named in self._moments.std().values() for s in named.values()]
            scale *= float(torch.cat(stds).mean())
        draws = _draws(rows, self.seed, zero)
        return zero.map_named(lambda layer, name, t, spec: draws[layer, name] * scale if _noisy(spec) else t)

    def advance(self, step: int, zero: RecurrentState) -> None:
        if self._moments is not None and self._moments.mean is None:
            self._moments.advance(step, zero)

    def observe(self, rows: Rows, final_state: RecurrentState) -> None:
        # Later final states hold the noise itself: measuring them would let it grow from step to step.
        if self._moments is not None and self._moments.mean is None:
            self._moments.add(final_state)

    def save(self, directory: str | Path) -> None:
        if self._moments is not None:
            self._moments.save(Path(directory) / "moments.json")

    def load(self, directory: str | Path) -> None:
        if self._moments is not None:
            self._moments.load(Path(directory) / "moments.json")


class FittedNoise(Intervention):
    """N(mu, sigma^2) with mu, sigma per layer and head, fitted to the final states seen in training.

    momentum: of the running moments, updated once an optimiser step from all processes. The first step starts from zero.
    """

    name = "fitted-noise"

    def __init__(self, momentum: float = 0.9, seed: int = 0) -> None:
        if not 0 <= momentum < 1:
            raise InputError(f"momentum is {momentum}; give a number from 0 up to, but not including, 1.")
        self.momentum, self.seed = momentum, seed
        self._moments = Moments(momentum)

    def initial_state(self, rows: Rows, zero: RecurrentState) -> RecurrentState | None:
        self.advance(rows.step, zero)
        if self._moments.mean is None:
            return None
        mean, std = self._moments.mean, self._moments.std()
        draws = _draws(rows, self.seed, zero)

        def noise(layer: str, name: str, t: Tensor, spec: TensorSpec) -> Tensor:
            if not _noisy(spec):
                return t
            shape = [1] * t.dim()
            if spec.head_axis is not None:
                shape[spec.head_axis] = t.shape[spec.head_axis]
            mu, sigma = (m[layer][name].to(t.device, t.dtype).view(shape) for m in (mean, std))
            return mu + sigma * draws[layer, name]

        return zero.map_named(noise)

    def advance(self, step: int, zero: RecurrentState) -> None:
        self._moments.advance(step, zero)

    def observe(self, rows: Rows, final_state: RecurrentState) -> None:
        self._moments.add(final_state)

    def save(self, directory: str | Path) -> None:
        self._moments.save(Path(directory) / "moments.json")

    def load(self, directory: str | Path) -> None:
        self._moments.load(Path(directory) / "moments.json")


class StatePassing(Intervention):
    """The final state of an unrelated sequence: the lane's own previous state over shuffled windows, detached.

    zero_fraction: this share of the lanes (those with the lowest ids) always starts from zero, which keeps the loss at
    the start of a text low. p_zero: each other row starts from zero with this probability. window_state: whether the
    window state (convolution inputs) is passed too. device: where the bank of states is kept.
    """

    name = "state-passing"

    def __init__(
        self,
        zero_fraction: float = 0.25,
        p_zero: float = 0.0,
        window_state: bool = False,
        seed: int = 0,
        device: str | None = None,
    ) -> None:
        for name, value in (("zero_fraction", zero_fraction), ("p_zero", p_zero)):
            if not 0 <= value <= 1:
                raise InputError(f"{name} is {value}; give a number from 0 to 1.")
        self.zero_fraction, self.p_zero, self.window_state, self.seed = zero_fraction, p_zero, window_state, seed
        self.bank = StateBank(device)

    def initial_state(self, rows: Rows, zero: RecurrentState) -> RecurrentState:
        if self.zero_fraction > 0 and _share(self.zero_fraction, rows.lanes) == 0:
            raise InputError(
                f"zero_fraction {self.zero_fraction} of {rows.lanes} lanes is no lane at all; use at least "
                f"{math.ceil(1 / self.zero_fraction)} rows a step, or set zero_fraction to 0."
            )
        state = self.bank.get(as_lanes(rows.lane), zero)
        if state is zero:
            return zero
        from_zero = self._from_zero(rows)
        if from_zero.any():
            state = state.zero_rows(from_zero)
        return state if self.window_state else state.without_window()

    def observe(self, rows: Rows, final_state: RecurrentState) -> None:
        _keep(self.bank, rows, final_state, self._from_zero(rows))

    def _from_zero(self, rows: Rows) -> Tensor:
        """bool [B]: rows whose lane always starts from zero, or is drawn to in this step."""
        zero_lanes = _share(self.zero_fraction, rows.lanes)
        lanes = as_lanes(rows.lane)
        drawn = [self.p_zero > 0 and _uniform(self.seed, rows.step, rows.origin + lane) < self.p_zero for lane in lanes]
        return torch.tensor([lane < zero_lanes or zero for lane, zero in zip(lanes, drawn)])

    def save(self, directory: str | Path) -> None:
        self.bank.save(directory)

    def load(self, directory: str | Path) -> None:
        self.bank.load(directory)


class TBPTT(Intervention):
    """Truncated backpropagation through time: the lane's previous final state, as its window continues that document.

    The state is zero exactly where a document starts. Raises InputError on shuffled rows, which continue nothing.
    """

    name = "tbptt"

    def __init__(self, device: str | None = None) -> None:
        self.bank = StateBank(device)

    def initial_state(self, rows: Rows, zero: RecurrentState) -> RecurrentState:
        if rows.shuffled:
            raise InputError("TBPTT was given shuffled rows, which do not continue each other; train it on lanes.")
        state = self.bank.get(as_lanes(rows.lane), zero)
        return state.zero_rows(rows.start.cpu()) if bool(rows.start.any()) else state

    def observe(self, rows: Rows, final_state: RecurrentState) -> None:
        _keep(self.bank, rows, final_state, rows.start)

    def save(self, directory: str | Path) -> None:
        self.bank.save(directory)

    def load(self, directory: str | Path) -> None:
        self.bank.load(directory)


class Mixture(Intervention):
    """Several interventions, each on its own share of the lanes, in order of lane ids.

    parts: (intervention, share) pairs; shares add up to 1. Raises InputError if a part gets no lane.
    """

    name = "mixture"

    def __init__(self, parts: Sequence[tuple[Intervention, float]]) -> None:
        if not parts or abs(sum(share for _, share in parts) - 1) > 1e-6 or any(share <= 0 for _, share in parts):
            raise InputError(
                f"The shares {[share for _, share in parts]} of a mixture must be above 0 and add up to 1."
            )
        self.parts = list(parts)

    def initial_state(self, rows: Rows, zero: RecurrentState) -> RecurrentState:
        state = zero
        for intervention, mine, inner in self._split(rows):
            if not len(mine):
                intervention.advance(rows.step, zero)
                continue
            given = intervention.initial_state(inner, zero.index(mine))
            if given is not None:
                everywhere = torch.zeros(len(rows), dtype=torch.long)
                everywhere[mine] = torch.arange(len(mine))
                chosen = torch.zeros(len(rows), dtype=torch.bool)
                chosen[mine] = True
                state = given.index(everywhere).where(chosen, state)
        return state

    def observe(self, rows: Rows, final_state: RecurrentState) -> None:
        for intervention, mine, inner in self._split(rows):
            if len(mine):
                intervention.observe(inner, final_state.index(mine))

    def _split(self, rows: Rows) -> list[tuple[Intervention, Tensor, Rows]]:
        edges = [0]
        for _, share in self.parts:
            edges.append(edges[-1] + share)  # type: ignore[arg-type]
        bounds = [round(edge * rows.lanes) for edge in edges]
        split = []
        for (intervention, share), low, high in zip(self.parts, bounds, bounds[1:]):
            if low == high:
                raise InputError(f"A share of {share} of {rows.lanes} lanes is no lane at all; use more rows a step.")
            mine = ((rows.lane >= low) & (rows.lane < high)).nonzero().flatten().cpu()
            inner = rows.index(mine)
            inner = replace(inner, lane=inner.lane - low, lanes=high - low, origin=rows.origin + low)
            split.append((intervention, mine, inner))
        return split

    def save(self, directory: str | Path) -> None:
        for i, (intervention, _) in enumerate(self.parts):
            (Path(directory) / f"part-{i}").mkdir(parents=True, exist_ok=True)
            intervention.save(Path(directory) / f"part-{i}")

    def load(self, directory: str | Path) -> None:
        for i, (intervention, _) in enumerate(self.parts):
            intervention.load(Path(directory) / f"part-{i}")

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "parts": [{**i.describe(), "share": share} for i, share in self.parts]}


# -- moments of final states ---------------------------------------------------------------------------------------


class Moments:
    """Running mean and second moment of final states per layer, tensor and head, over all processes.

    Final states added during one optimiser step are reduced over all processes when the next step begins, so every
    process must call advance() once or more in every step, whether or not it has rows.
    """

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum
        self.mean: dict[str, dict[str, Tensor]] | None = None
        self.square: dict[str, dict[str, Tensor]] | None = None
        self._sums: dict[tuple[str, str], Tensor] = {}
        self._step: int | None = None

    def add(self, state: RecurrentState) -> None:
        """Adds the final states of some rows of the step under way. Sums are [3, H]: entries, squares, count."""
        for key, sums in _sums_of(state).items():
            self._sums[key] = self._sums[key] + sums if key in self._sums else sums

    def advance(self, step: int, zero: RecurrentState) -> None:
        """Begins a step: takes the finished step's states into the running moments. zero tells the layout."""
        if step == self._step:
            return
        first, self._step = self._step is None, step
        if first:
            return
        sums = self._sums or {key: torch.zeros_like(value) for key, value in _sums_of(zero).items()}
        self._sums = {}
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            flat = torch.cat([s.flatten() for s in sums.values()])
            torch.distributed.all_reduce(flat)
            parts = flat.split([s.numel() for s in sums.values()])
            sums = {key: part.view_as(s) for (key, s), part in zip(sums.items(), parts)}
        if not any(bool(count.any()) for _, _, count in sums.values()):
            return
        mean: dict[str, dict[str, Tensor]] = {}
        square: dict[str, dict[str, Tensor]] = {}
        for (layer, name), (total, squares, count) in sums.items():
            mean.setdefault(layer, {})[name] = total / count
            square.setdefault(layer, {})[name] = squares / count
        self.mean = _blend(self.mean, mean, self.momentum)
        self.square = _blend(self.square, square, self.momentum)

    def std(self) -> dict[str, dict[str, Tensor]]:
        """Standard deviation per layer, tensor and head [H]."""
        assert self.mean is not None and self.square is not None
        return {
            layer: {name: (self.square[layer][name] - m.square()).clamp_min(0).sqrt() for name, m in named.items()}
            for layer, named in self.mean.items()
        }

    def save(self, path: Path) -> None:
        plain = {
            "step": self._step,
            "mean": _lists(self.mean),
            "square": _lists(self.square),
            "sums": [[*key, value.tolist()] for key, value in self._sums.items()],
        }
        path.write_text(json.dumps(plain))

    def load(self, path: Path) -> None:
        try:
            plain = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"The moments of the fitted noise in {path} cannot be read ({error}).") from None
        self._step = plain["step"]
        self.mean, self.square = _tensors(plain["mean"]), _tensors(plain["square"])
        self._sums = {(a, b): torch.tensor(v, dtype=torch.float64) for a, b, v in plain["sums"]}


def _sums_of(state: RecurrentState) -> dict[tuple[str, str], Tensor]:
    """Per layer and tensor [3, H]: the sum of each head's entries, of their squares, and their count, over all rows."""
    found = {}
    for layer, named in state.tensors.items():
        for name, tensor in named.items():
            if _noisy(spec := state.specs[layer][name]):
                x = heads_of(tensor.detach(), spec).double()
                count = torch.full_like(x.sum((0, 2)), x.shape[0] * x.shape[2])
                found[layer, name] = torch.stack([x.sum((0, 2)), x.square().sum((0, 2)), count])
    return found


def _blend(old: dict | None, found: dict, momentum: float) -> dict:
    if old is None:
        return found
    return {
        layer: {
            name: momentum * old[layer][name].to(value.device) + (1 - momentum) * value for name, value in named.items()
        }
        for layer, named in found.items()
    }


def _lists(moments: dict[str, dict[str, Tensor]] | None) -> dict | None:
    if moments is None:
        return None
    return {layer: {name: value.tolist() for name, value in named.items()} for layer, named in moments.items()}


def _tensors(plain: dict | None) -> dict[str, dict[str, Tensor]] | None:
    if plain is None:
        return None
    return {
        layer: {n: torch.tensor(v, dtype=torch.float64) for n, v in named.items()} for layer, named in plain.items()
    }


# -- draws, keyed on (seed, step, lane) -----------------------------------------------------------------------------


def _key(seed: int, step: int, lane: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{step}/{lane}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _uniform(seed: int, step: int, lane: int) -> float:
    return _key(seed, step, lane) / 2**63


def _draws(rows: Rows, seed: int, zero: RecurrentState) -> dict[tuple[str, str], Tensor]:
    """Standard normal draws in the shape of every recurrent tensor: row by row, so that no draw depends on the others."""
    names = [
        (layer, name) for layer, named in zero.tensors.items() for name in named if _noisy(zero.specs[layer][name])
    ]
    sizes = [zero.tensors[layer][name][0].numel() for layer, name in names]
    generator = torch.Generator(zero.device)
    drawn = []
    for lane in as_lanes(rows.lane):
        generator.manual_seed(_key(seed, rows.step, rows.origin + lane))
        dtype = zero.tensors[names[0][0]][names[0][1]].dtype
        drawn.append(torch.randn(sum(sizes), generator=generator, device=zero.device, dtype=dtype))
    parts = torch.stack(drawn).split(sizes, dim=1)
    return {(layer, name): part.view_as(zero.tensors[layer][name]) for (layer, name), part in zip(names, parts)}


def _share(fraction: float, lanes: int) -> int:
    """floor(fraction x lanes), the product taken as the decimal number it is meant to be."""
    return math.floor(fraction * lanes + 1e-9)


def _noisy(spec: TensorSpec) -> bool:
    return spec.kind == "recurrent" and spec.noise


def _keep(bank: StateBank, rows: Rows, final_state: RecurrentState, from_zero: Tensor) -> None:
    lanes = as_lanes(rows.lane)
    documents = as_lanes(rows.document) if rows.document is not None else [-1] * len(lanes)
    offsets = as_lanes(rows.offset) if rows.offset is not None else [-1] * len(lanes)
    fresh = from_zero.tolist()
    provenance = [
        Provenance(
            documents[i],
            offsets[i] + rows.tokens if offsets[i] >= 0 else -1,
            rows.tokens + (0 if fresh[i] or lane not in bank else bank.provenance(lane).age),
        )
        for i, lane in enumerate(lanes)
    ]
    bank.put(lanes, final_state, provenance)


INTERVENTIONS = ("state-passing", "tbptt", "fitted-noise", "random-noise", "zero")


def intervention_named(text: str, seed: int = 0) -> Intervention:
    """An intervention by its name on the command line: NAME or NAME:setting=value,setting=value.

    random-noise without a std has ten times the standard deviation of ordinary final states. seed: of the draws, where
    the settings name none. Raises InputError for an unknown name or setting.
    """
    makers = {c.name: c for c in (StatePassing, TBPTT, FittedNoise, RandomNoise, Zero)}
    name, _, rest = text.partition(":")
    if name not in makers:
        raise InputError(f"There is no intervention {name!r}; choose one of {', '.join(INTERVENTIONS)}.")
    settings: dict[str, Any] = {"seed": seed} if makers[name] in (StatePassing, FittedNoise, RandomNoise) else {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"The setting {item!r} of {name} has no value; write {key}=VALUE.")
        settings[key.strip()] = _value(value.strip())
    if name == RandomNoise.name and "std" not in settings:
        settings |= {"std": 10.0, "relative": True}
    try:
        return makers[name](**settings)
    except TypeError as error:
        raise InputError(f"The intervention {name} does not take these settings: {error}.") from None


def _value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
