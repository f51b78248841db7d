"""What a recurrent model remembers, as a value: layer -> named tensors, batch first, each with a spec.

B batch, H heads. Nothing here changes a state in place: every operation gives a new one. A state is deliberately
neither a container that PyTorch walks through (pytree) nor a Mapping, so that wrappers which cast or scatter
tensors found in containers leave its precision alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from lengthen.errors import InputError, RunError


@dataclass(frozen=True)
class TensorSpec:
    """What one tensor of a state is.

    kind: "recurrent" decides the far past; "window" holds the last few inputs (convolution, token shift).
    head_axis: the axis (counting the batch axis) that numbers heads; None counts as one head a layer.
    noise: whether Gaussian noise may stand there (not for running maxima or normalisers).
    """

    kind: Literal["recurrent", "window"]
    head_axis: int | None = None
    noise: bool = True


LayerState = dict[str, Tensor]
"""One layer's part of a state: tensor name -> tensor, batch first."""


class RecurrentState:
    """A model's state for B rows.

    tensors: layer name -> tensor name -> Tensor [B, ...]; recurrent tensors are at least float32.
    specs: layer name -> tensor name -> TensorSpec.
    family: the layer family's name. weights: fingerprint of the weights it was made with, where one is known.
    Raises InputError where tensors and specs do not match or rows differ between tensors.
    """

    __slots__ = ("family", "specs", "tensors", "weights")

    tensors: Mapping[str, Mapping[str, Tensor]]
    specs: Mapping[str, Mapping[str, TensorSpec]]
    family: str
    weights: str | None

    def __init__(
        self,
        tensors: Mapping[str, Mapping[str, Tensor]],
        specs: Mapping[str, Mapping[str, TensorSpec]],
        family: str,
        weights: str | None = None,
    ) -> None:
        rows = {t.shape[0] for layer in tensors.values() for t in layer.values()}
        if len(rows) != 1:
            raise InputError(f"A state's tensors must agree on the number of rows, but have {sorted(rows)}.")
        for layer, named in tensors.items():
            if layer not in specs or set(named) != set(specs[layer]):
                raise InputError(
                    f"Layer {layer} of the state has tensors {sorted(named)}, which its specs do not name."
                )
            for name, tensor in named.items():
                if specs[layer][name].kind == "recurrent" and tensor.dtype not in (
                    torch.float32,
                    torch.float64,
                ):
                    raise InputError(
                        f"The recurrent tensor {name} of {layer} is {tensor.dtype}; a recurrent state is kept in float32 or float64."
                    )
        set_ = object.__setattr__
        set_(self, "tensors", MappingProxyType({k: MappingProxyType(dict(v)) for k, v in tensors.items()}))
        set_(self, "specs", MappingProxyType({k: MappingProxyType(dict(specs[k])) for k in tensors}))
        set_(self, "family", family)
        set_(self, "weights", weights)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            "A RecurrentState is a value; make a new one (map, index, where, ...) instead of changing it."
        )

    def __reduce__(self) -> tuple:
        tensors = {k: dict(v) for k, v in self.tensors.items()}
        return (
            RecurrentState,
            (tensors, {k: dict(v) for k, v in self.specs.items()}, self.family, self.weights),
        )

    def __repr__(self) -> str:
        return f"RecurrentState({self.family}, {self.rows} rows, {len(self.tensors)} layers, {self.bytes:,} bytes)"

    @property
    def rows(self) -> int:
        """The number of rows B."""
        return self._first.shape[0]

    @property
    def device(self) -> torch.device:
        return self._first.device

    @property
    def bytes(self) -> int:
        """Memory of all tensors, in bytes."""
        return sum(t.numel() * t.element_size() for layer in self.tensors.values() for t in layer.values())

    @property
    def _first(self) -> Tensor:
        return next(iter(next(iter(self.tensors.values())).values()))

    @property
    def layout(self) -> str:
        """Fingerprint of family, layer names, row shapes and kinds: two states mix only if it is equal."""
        description = [
            self.family,
            [
                [layer, name, list(t.shape[1:]), self.specs[layer][name].kind]
                for layer, named in sorted(self.tensors.items())
                for name, t in sorted(named.items())
            ],
        ]
        return hashlib.sha256(json.dumps(description).encode()).hexdigest()[:16]

    def require_layout(self, other: RecurrentState | str) -> None:
        """Raises InputError if the other state (or layout fingerprint) belongs to another model's layout."""
        expected = other if isinstance(other, str) else other.layout
        if self.layout != expected:
            raise InputError(
                f"The state (layout {self.layout}, {self.family}) is of another model than the one expected ({expected}); "
                "make it with the same architecture and sizes."
            )

    def require_weights(self, fingerprint: str) -> None:
        """Raises InputError if the state was made with other weights than those of this fingerprint."""
        if self.weights is not None and self.weights != fingerprint:
            raise InputError(
                f"The state was made with weights {self.weights}, the model has {fingerprint}; run the model over the text again."
            )

    # -- new states from old ---------------------------------------------------------------------------------

    def map(self, function: Callable[[Tensor, TensorSpec], Tensor]) -> RecurrentState:
        """The state with function(tensor, spec) in place of every tensor."""
        tensors = {
            layer: {name: function(t, self.specs[layer][name]) for name, t in named.items()}
            for layer, named in self.tensors.items()
        }
        return RecurrentState(tensors, self.specs, self.family, self.weights)

    def map_named(self, function: Callable[[str, str, Tensor, TensorSpec], Tensor]) -> RecurrentState:
        """As map, but function(layer, name, tensor, spec)."""
        tensors = {
            layer: {name: function(layer, name, t, self.specs[layer][name]) for name, t in named.items()}
            for layer, named in self.tensors.items()
        }
        return RecurrentState(tensors, self.specs, self.family, self.weights)

    def detach(self) -> RecurrentState:
        return self.map(lambda t, _: t.detach())

    def clone(self) -> RecurrentState:
        return self.map(lambda t, _: t.clone())

    def to(self, device: torch.device | str) -> RecurrentState:
        return self.map(lambda t, _: t.to(device))

    def requires_grad(self) -> RecurrentState:
        """A detached copy whose tensors are leaves that collect gradients."""
        return self.map(lambda t, _: t.detach().clone().requires_grad_())

    def zeros(self) -> RecurrentState:
        """The zero state of the same rows."""
        return self.map(lambda t, _: torch.zeros_like(t))

    def without_window(self) -> RecurrentState:
        """The same state with every window tensor zero."""
        return self.map(lambda t, spec: torch.zeros_like(t) if spec.kind == "window" else t)

    def index(self, rows: Tensor | Sequence[int]) -> RecurrentState:
        """The state of the given rows, in the given order (int64 [n])."""
        index = torch.as_tensor(rows, dtype=torch.long)
        return self.map(lambda t, _: t.index_select(0, index.to(t.device)))

    def where(self, mask: Tensor | Sequence[bool], other: RecurrentState) -> RecurrentState:
        """Row by row: this state where mask [B] is true, the other elsewhere."""
        self.require_layout(other)
        chosen = torch.as_tensor(mask, dtype=torch.bool)
        if chosen.shape != (self.rows,) or other.rows != self.rows:
            raise InputError(
                f"A row mask of shape {tuple(chosen.shape)} does not fit states of {self.rows} and {other.rows} rows."
            )

        def pick(layer: str, name: str, t: Tensor, _: TensorSpec) -> Tensor:
            return torch.where(
                chosen.to(t.device).view(-1, *[1] * (t.dim() - 1)), t, other.tensors[layer][name].to(t.device)
            )

        return self.map_named(pick)

    def zero_rows(self, mask: Tensor | Sequence[bool]) -> RecurrentState:
        """The same state with the rows where mask [B] is true set to zero (exactly, also over inf and NaN)."""
        chosen = torch.as_tensor(mask, dtype=torch.bool)
        if chosen.shape != (self.rows,):
            raise InputError(f"A row mask of shape {tuple(chosen.shape)} does not fit a state of {self.rows} rows.")
        return self.map(lambda t, _: t.masked_fill(chosen.to(t.device).view(-1, *[1] * (t.dim() - 1)), 0))

    def with_weights(self, fingerprint: str | None) -> RecurrentState:
        """The same state, marked as made by the weights of this fingerprint."""
        return RecurrentState(self.tensors, self.specs, self.family, fingerprint)

    @staticmethod
    def concatenate(states: Sequence[RecurrentState]) -> RecurrentState:
        """The rows of all states, one after the other."""
        first = _same_layout(states)
        return first.map_named(
            lambda layer, name, t, _: torch.cat([s.tensors[layer][name].to(t.device) for s in states])
        )

    @staticmethod
    def average(states: Sequence[RecurrentState]) -> RecurrentState:
        """The entrywise mean of several states of equally many rows."""
        first = _same_layout(states)
        return first.map_named(
            lambda layer, name, t, _: torch.stack([s.tensors[layer][name].to(t.device) for s in states]).mean(0)
        )

    # -- measures --------------------------------------------------------------------------------------------

    def statistics(self) -> dict[str, dict[str, dict[str, Tensor]]]:
        """Of the recurrent state, per layer, tensor and head: {"mean", "std", "norm", "largest"} -> Tensor [B, H], float64 on the CPU.

        std is over a head's entries (population form), norm is Euclidean, largest is the largest absolute entry.
        """
        found: dict[str, dict[str, dict[str, Tensor]]] = {}
        for layer, named in self.tensors.items():
            for name, tensor in named.items():
                spec = self.specs[layer][name]
                if spec.kind == "recurrent":
                    entries = heads_of(tensor, spec).detach().double().cpu()
                    found.setdefault(layer, {})[name] = {
                        "mean": entries.mean(-1),
                        "std": entries.std(-1, unbiased=False),
                        "norm": entries.norm(dim=-1),
                        "largest": entries.abs().amax(-1),
                    }
        return found

    # -- files -----------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Writes the state as safetensors, whole or not at all."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = Path(path)
        flat = {
            f"{layer}/{name}": t.detach().contiguous().cpu()
            for layer, named in self.tensors.items()
            for name, t in named.items()
        }
        specs = {
            f"{layer}/{name}": [s.kind, s.head_axis, s.noise]
            for layer, named in self.specs.items()
            for name, s in named.items()
        }
        metadata = {
            "lengthen": "state-1",
            "family": self.family,
            "weights": self.weights or "",
            "specs": json.dumps(specs),
        }
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            save_file(flat, temporary, metadata=metadata)
            os.replace(temporary, path)
        except (OSError, SafetensorError) as error:
            temporary.unlink(missing_ok=True)
            raise RunError(f"The state cannot be written to {path} ({error}); choose another place.") from None

    @staticmethod
    def load(path: str | Path, device: torch.device | str = "cpu") -> RecurrentState:
        """Reads what save() wrote. Raises InputError for a missing, damaged or foreign file."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="pt", device=str(device)) as file:
                metadata = file.metadata() or {}
                if metadata.get("lengthen") != "state-1":
                    raise InputError(
                        f"{path} is not a state saved by lengthen; give a file written by RecurrentState.save."
                    )
                tensors: dict[str, LayerState] = {}
                specs: dict[str, dict[str, TensorSpec]] = {}
                for key, (kind, head_axis, noise) in json.loads(metadata["specs"]).items():
                    layer, name = key.rsplit("/", 1)
                    tensors.setdefault(layer, {})[name] = file.get_tensor(key)
                    specs.setdefault(layer, {})[name] = TensorSpec(kind, head_axis, noise)
        except (OSError, SafetensorError) as error:
            raise InputError(f"The state file {path} cannot be read ({error}); save it again.") from None
        return RecurrentState(tensors, specs, metadata["family"], metadata["weights"] or None)


def heads_of(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """The tensor [B, ...] as [B, H, entries], by its spec's head axis (None: one head)."""
    if spec.head_axis is None:
        return tensor.reshape(tensor.shape[0], 1, -1)
    return tensor.movedim(spec.head_axis, 1).reshape(tensor.shape[0], tensor.shape[spec.head_axis], -1)


def _same_layout(states: Sequence[RecurrentState]) -> RecurrentState:
    if not states:
        raise InputError("No state was given; give at least one.")
    for state in states[1:]:
        state.require_layout(states[0])
    return states[0]
