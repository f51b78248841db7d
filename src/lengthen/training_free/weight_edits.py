"""Methods that change weights once instead of the recurrence while it runs, and put them back bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models.binding import library_model
from lengthen.models.hooked_layers import hookable_layers


@contextmanager
def edited(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Other values in these parameters (by their names in the library's model) for as long as this lasts."""
    parameters = {name: library_model(model).get_parameter(name) for name in weights}
    before = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = weights[name].to(parameter.device, parameter.dtype)
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = before[name]


def rates(method: str, model: nn.Module) -> dict[str, nn.Parameter]:
    """Every recurrent layer's A_log, the log of how fast it decays in a unit of its step, by the parameter's name.

    Raises InputError where a layer has none.
    """
    found = {}
    for binding, layer in hookable_layers(model):
        if not isinstance(getattr(layer, "A_log", None), nn.Parameter):
            raise InputError(
                f"{method} changes the rates A of Mamba's layers, which {binding.name} ({type(layer).__name__}) has not; "
                "choose another method for this model."
            )
        found[f"{binding.name}.A_log"] = layer.A_log
    return found
