"""What a training-free method is: settings, fitted to a model on calibration text, put on it for a while.

n rows of calibration text, T0 the training context, L the length in use.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models.binding import library_model, weights_fingerprint
from lengthen.models.hooked_layers import hookable_layers, hooked, require_quantities
from lengthen.models.hooks import Hook
from lengthen.models.wrapping import require_wrapped
from lengthen.results import write_text
from lengthen.state import RecurrentState
from lengthen.streaming import SEGMENT, losses_of

NEEDS = {
    "calibration": "calibration text",
    "long-calibration": "calibration text as long as the length in use",
    "gradients": "gradients of the loss on calibration text",
    "train-context": "the training context",
    "length": "the length in use",
    "prompt": "the whole prompt before its first token is run",
    "query": "a question apart from the text it is about",
    "lanes": "more than one lane for each sequence",
}
"""What a method may need beyond the model: name -> in words."""
FIT = ("train_context", "length", "data", "tokens_read", "forwards", "seconds")
"""What a fit tells of itself beside what it found out."""


@dataclass
class Calibration:
    """What a method may know when it is fitted, and what it has used of it.

    train_context: T0. length: L. text: tokens int64 [n, T0 + 1], of no text that the method is chosen or judged by.
    long_text: tokens int64 [m, L + 1] of the same split, for methods that are fitted at the length in use.
    seed: of random draws. data: the fingerprint of the corpus that the texts are from. tokens_read, forwards: tokens that were run for the fit, repetitions counted, in so many calls.
    """

    train_context: int | None = None
    length: int | None = None
    text: Tensor | None = None
    long_text: Tensor | None = None
    seed: int = 0
    data: str = ""
    tokens_read: int = field(default=0, init=False)
    forwards: int = field(default=0, init=False)

    def losses(self, model: nn.Module) -> Tensor:
        """Losses [n, T0] of the text from the zero state in one call, with gradients where they are on."""
        assert self.text is not None, "a method that reads calibration text lists it among its needs"
        return self._call(model, self.text, None)[0]

    def long_losses(self, model: nn.Module) -> Tensor:
        """The same of the long text in segments, the state carried with its gradients: [m, L]."""
        assert self.long_text is not None, "a method that reads long calibration text lists it among its needs"
        found, state = [], None
        for low in range(0, self.long_text.shape[1] - 1, SEGMENT):
            losses, state = self._call(model, self.long_text[:, low : low + SEGMENT + 1], state)
            found.append(losses)
        return torch.cat(found, 1)

    def _call(self, model: nn.Module, text: Tensor, state: RecurrentState | None) -> tuple[Tensor, RecurrentState]:
        text = text.to(next(model.parameters()).device)
        self.tokens_read += text[:, 1:].numel()
        self.forwards += 1
        return losses_of(model, text[:, :-1], text[:, 1:], state)

    @property
    def shortening(self) -> float:
        """T0 / L, for a method that needs both."""
        assert self.train_context is not None and self.length is not None
        return self.train_context / self.length

    def require(self, method: str, needs: frozenset[str]) -> None:
        """Raises InputError where something is missing that the method of this name needs."""
        given: dict[str, object] = {"train-context": self.train_context, "length": self.length}
        given |= {"calibration": self.text, "long-calibration": self.long_text}
        missing = [need for need in NEEDS if need in needs and need in given and given[need] is None]
        if missing:
            raise InputError(f"{method} needs {NEEDS[missing[0]]}; give it, or choose a setting that does without.")


@dataclass(frozen=True)
class Method(ABC):
    """A training-free method's settings, as fields; what it finds out for a model it returns from `measured`."""

    name: ClassVar[str]

    @property
    def needs(self) -> frozenset[str]:
        """Of NEEDS, what these settings need beyond the model."""
        return frozenset()

    def require_whole(self, setting: str, least: int = 1) -> None:
        """Raises InputError where a setting is given and is no whole number of at least so much."""
        value = getattr(self, setting)
        if value is not None and (not float(value).is_integer() or value < least):
            raise InputError(f"The setting {setting} of {self.name} is {value}; give a whole number, at least {least}.")

    @abstractmethod
    def require_model(self, model: nn.Module) -> None:
        """Raises InputError where the model has a recurrent layer for which the method means nothing."""

    def measured(self, model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
        """What the method is fitted to for this model, tensors by name; nothing unless said."""
        return {}

    @abstractmethod
    def put_on(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Lets the model run under the method, with what `measured` returned, while this lasts."""

    def fit(self, model: nn.Module, calibration: Calibration | None = None) -> FittedMethod:
        """Fits the method to a wrapped model, which stays as it is.

        Raises InputError where the model lacks what the method changes, or the calibration what it needs.
        """
        calibration = calibration or Calibration()
        require_wrapped(model)
        self.require_model(model)
        calibration.require(self.name, self.needs)
        tokens, forwards, began = calibration.tokens_read, calibration.forwards, time.process_time()
        tensors = {name: t.detach().cpu() for name, t in self.measured(model, calibration).items()}
        return FittedMethod(
            self,
            weights_fingerprint(model),
            tensors,
            calibration.train_context,
            calibration.length,
            calibration.data if {"calibration", "long-calibration", "gradients"} & self.needs else "",
            tokens_read=calibration.tokens_read - tokens,
            forwards=calibration.forwards - forwards,
            seconds=time.process_time() - began,
        )


@dataclass(frozen=True)
class HookMethod(Method):
    """A method that is a hook. uses: of models.hooks.QUANTITIES, what every recurrent layer must have for it."""

    uses: ClassVar[frozenset[str]] = frozenset()

    def require_model(self, model: nn.Module) -> None:
        for binding, layer in hookable_layers(model):
            require_quantities(self.name, self.uses, binding, layer)

    @abstractmethod
    def hook(self, tensors: Mapping[str, Tensor]) -> Hook:
        """The hook that the model runs under, from what `measured` returned."""

    def put_on(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        return hooked(model, self.hook(tensors))


@dataclass(frozen=True)
class FittedMethod:
    """A method fitted to one model's weights, and what the fit took.

    weights: their fingerprint. tensors: what was found out for this model. train_context, length, tokens_read, forwards:
    as in Calibration. data: too, empty where no text was read. seconds: of CPU time.
    """

    method: Method
    weights: str
    tensors: Mapping[str, Tensor]
    train_context: int | None
    length: int | None
    data: str
    tokens_read: int
    forwards: int
    seconds: float

    @contextmanager
    def apply(self, model: nn.Module) -> Iterator[None]:
        """Lets the model run under the method while this lasts; afterwards it is what it was, bit for bit.

        Raises InputError for another model's weights.
        """
        require_wrapped(model)
        found = weights_fingerprint(model)
        if found != self.weights:
            raise InputError(
                f"{self.method.name} was fitted to the weights {self.weights}, but {type(library_model(model)).__name__} "
                f"has {found}; fit it again."
            )
        device = next(model.parameters()).device
        with self.method.put_on(model, {name: t.to(device) for name, t in self.tensors.items()}):
            yield

    def save(self, folder: str | Path) -> None:
        """Writes method.json and method.safetensors into a folder."""
        from safetensors.torch import save_file

        folder = Path(folder)
        document: dict[str, Any] = {"name": self.method.name, "settings": asdict(self.method), "weights": self.weights}
        document |= {name: getattr(self, name) for name in FIT}
        write_text(folder / "method.json", json.dumps(document, indent=1) + "\n")
        save_file({name: t.contiguous() for name, t in self.tensors.items()}, folder / "method.safetensors")


def load_fitted(folder: str | Path) -> FittedMethod:
    """Reads what FittedMethod.save wrote. Raises InputError for a missing, damaged or foreign file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from lengthen.training_free.names import method_with

    folder = Path(folder)
    try:
        document: dict[str, Any] = json.loads((folder / "method.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "method.safetensors")
        method = method_with(document["name"], document["settings"])
        return FittedMethod(method, document["weights"], tensors, **{name: document[name] for name in FIT})
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{folder} holds no fitted method that can be read ({error}); fit and save it again."
        ) from None
