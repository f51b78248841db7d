"""The library's output classes, each with one more field: final_state."""

from __future__ import annotations

import functools
import inspect
import sys
from dataclasses import fields, make_dataclass
from typing import Any

from transformers.modeling_outputs import CausalLMOutput, MoeCausalLMOutputWithPast, MoeModelOutputWithPast

from lengthen.state import RecurrentState

_cache: Any = functools.cache


@_cache
def with_final_state(cls: Any) -> type:
    """The library's output class with one more field, final_state."""

    def reduce(self: Any) -> tuple:
        return _rebuild_output, (cls, {f.name: getattr(self, f.name) for f in fields(self)})

    namespace = {
        "__doc__": cls.__doc__,
        "__module__": __name__,
        "__qualname__": f"with_final_state({cls.__module__}.{cls.__qualname__})",
        "__reduce__": reduce,
    }
    return make_dataclass(
        cls.__name__, [("final_state", RecurrentState | None, None)], bases=(cls,), namespace=namespace
    )


def _rebuild_output(cls: type, values: dict[str, Any]) -> Any:
    return with_final_state(cls)(**values)


@_cache
def output_class(cls: Any, base: Any) -> type:
    """The output class that the library's forward says it returns; that of mixtures where the base output is one."""
    if issubclass(base, MoeModelOutputWithPast):
        return MoeCausalLMOutputWithPast

    module = sys.modules[cls.__module__]
    hint = inspect.signature(cls.forward).return_annotation
    names = [hint] if isinstance(hint, str) else [getattr(a, "__name__", "") for a in getattr(hint, "__args__", [hint])]
    for name in names:
        for part in name.replace("|", " ").split():
            found = getattr(module, part, None)
            if isinstance(found, type) and hasattr(found, "logits"):
                return found
    return CausalLMOutput
