"""A model's own forward and its own cache, whatever the class calls them: how to run it and what the cache holds.

Nothing of a wrapped model is used here: this is the path a user of the library takes without us.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from lengthen.errors import InputError

CACHE_KEYWORDS = ("cache", "cache_params", "past_key_values", "state")
"""Every name under which some class of the library takes its cache, the present one first."""

_KINDS = (
    ("recurrent", re.compile(r"recurrent|ssm|rnn_state|linear_cache")),
    ("window", re.compile(r"conv|shift")),
    ("attention", re.compile(r"keys|values|key_cache|value_cache")),
)
_RWKV_WINDOWS = 2  # of RWKV's five state tensors the first two are token shifts


@dataclass(frozen=True)
class HeldTensor:
    """One tensor of a cache: where it lies, what it is (recurrent, window, attention), the tensor itself."""

    path: str
    kind: str
    tensor: Tensor


class LibraryPath:
    """Runs a model through its own cache.

    Raises:
        InputError: the model's forward takes no cache under any name the library uses.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        parameters = inspect.signature(model.forward).parameters
        self.accepts_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        self.named = frozenset(parameters)
        keywords = [name for name in CACHE_KEYWORDS if name in self.named]
        if not keywords:
            raise InputError(
                f"{type(model).__name__}.forward takes no cache ({', '.join(CACHE_KEYWORDS)}), so its own path "
                "cannot be judged; wrap the model instead."
            )
        self.keyword = keywords[0]
        self._returns_cache: bool | None = None
        self._unset = [
            (module, name)
            for module in model.modules()
            for name, value in vars(module).items()
            if value is None and not name.startswith("_")
        ]

    def run(self, tokens: Tensor, cache: Any = None, *, use_cache: bool = True, **extra: Any) -> tuple[Tensor, Any]:
        """Logits [B, T, V] of tokens [B, T] (int64) or of embeddings [B, T, D], and the cache after them."""
        key = "inputs_embeds" if tokens.is_floating_point() else "input_ids"
        output = self.model(**{key: tokens, self.keyword: cache, "use_cache": use_cache}, **extra)
        found = [getattr(output, name, None) for name in (self.keyword, *CACHE_KEYWORDS)]
        return output.logits, next((value for value in found if value is not None), cache)

    def start(self) -> Any:
        """What to hand to the first call of a sequence: None, or a new cache where the output returns none."""
        if self._returns_cache is None:
            with torch.no_grad():
                tokens = torch.zeros(1, 2, dtype=torch.int64, device=self.model.device)
                self._returns_cache = self.run(tokens)[1] is not None
        return None if self._returns_cache else DynamicCache(config=self.model.config)

    def forget(self) -> None:
        """Puts away state tensors that the class keeps on its modules."""
        for module, name in self._unset:
            if isinstance(getattr(module, name), Tensor):
                setattr(module, name, None)

    def on_modules(self) -> list[str]:
        """Names of state tensors that the class keeps on its modules."""
        found = {name for module, name in self._unset if isinstance(getattr(module, name), Tensor)}
        return sorted(found)

    def held(self, cache: Any) -> list[HeldTensor]:
        """The floating-point tensors of a cache, in a fixed order."""
        found = [(path, tensor) for path, tensor in _tensors("", cache) if tensor.is_floating_point()]
        if self.keyword == "state" and isinstance(cache, list | tuple):
            kinds = ["window" if index < _RWKV_WINDOWS else "recurrent" for index in range(len(found))]
            return [HeldTensor(path, kind, tensor) for (path, tensor), kind in zip(found, kinds, strict=True)]
        return [HeldTensor(path, _kind(path), tensor) for path, tensor in found]

    def memory(self, cache: Any) -> list[HeldTensor]:
        """What a cache holds of the far past: its recurrent tensors, or its windows where there are none."""
        held = self.held(cache)
        recurrent = [item for item in held if item.kind == "recurrent"]
        return recurrent or [item for item in held if item.kind == "window"]

    def accepts(self, name: str) -> bool:
        """Whether forward takes a keyword, by name or in its **kwargs."""
        return name in self.named or self.accepts_any


def fork(cache: Any) -> Any:
    """A deep copy, so that a call cannot change the original."""
    with torch.no_grad():
        return copy.deepcopy(cache)


def _kind(path: str) -> str:
    return next((kind for kind, pattern in _KINDS if pattern.search(path)), "other")


def _tensors(path: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(f"{path}.{key}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(f"{path}.{index}", item)
    elif hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
        for name, item in vars(value).items():
            if name != "config":
                yield from _tensors(f"{path}.{name}", item)
