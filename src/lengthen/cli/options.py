"""What all commands take, and what their options say once they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from cyclopts import Group, Parameter, convert

from lengthen.errors import InputError


@Parameter(name="*", group=Group("Options of every command", sort_key=1))
@dataclass(frozen=True)
class Common:
    """What every command takes.

    Args:
        out: The run folder to write: run.json, results/, figures/, report.html, and model/ where one is trained (demo,
            post-train, pretrain, rivals and study write one anyway, lengthen-COMMAND unless said).
        overwrite: Replace the run that lies in --out.
        json: Print the result as JSON and nothing else on standard output.
        seed: The seed of everything random.
        device: Where to run, such as cpu or cuda:0 (the first GPU where there is one).
        dtype: What the weights are loaded as: float32, bfloat16, float16 or float64 (as saved unless said).
        threads: CPU threads (PyTorch's choice unless said).
        config: A YAML file with any of the command's options; `training:` in it holds transformers.TrainingArguments.
        debug: Show an error's traceback.
    """

    out: Path | None = None
    overwrite: bool = False
    json: bool = False
    seed: int = 0
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    config: Path | None = None
    debug: bool = False


DEFAULTS = Common()
UNITS = {"k": 1 << 10, "m": 1 << 20}
"""Of numbers of tokens."""


def default_told(value: Any) -> str | None:
    """What help says of an option's default: nothing of a switch that is off."""
    if value is None or value is False:
        return None
    return " ".join(f"{part:g}" for part in value) if isinstance(value, tuple) else str(value)


def whole_or_refused(kind: Any, tokens: Any) -> Any:
    """An option's value as cyclopts reads it; but of whole numbers, 2k is 2,048, and a fraction, which cyclopts would
    round, is refused."""
    if kind is int or int in get_args(kind):
        for token in tokens:
            if "." in token.value:
                raise ValueError(f"{token.value} is no whole number.")
        tokens = [token.evolve(value=_spelt_out(token.value)) for token in tokens]
    return convert(kind, tokens)


def device_of(common: Common) -> str:
    """The device asked for, or the first GPU, or the CPU."""
    import torch

    if common.device is not None:
        try:
            torch.empty(0, device=common.device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0].split(". ")[0]
            raise InputError(f"The device {common.device} cannot be used ({reason}).") from None
        if torch.device(common.device).type == "meta":
            raise InputError("The device meta holds no values to compute with; give cpu or a GPU.")
        return common.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def sizes(text: str) -> list[int]:
    """Numbers of tokens, divided by commas: 512,4k,1M, k being 1,024 and M its square."""
    found = []
    for part in map(str.strip, text.split(",")):
        number = _spelt_out(part)
        if not number.isdecimal():
            raise InputError(f"{part!r} is no number of tokens; write such as 512,4k,1M.")
        found.append(int(number))
    return found


def _spelt_out(number: str) -> str:
    """2k as 2048, 1M as 1048576; anything else as it is."""
    factor = UNITS.get(number[-1:].lower())
    return str(int(number[:-1]) * factor) if factor and number[:-1].isdecimal() else number


def shares(text: str) -> list[float]:
    """Numbers divided by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{text!r} are no shares; write such as 0,0.5,1.") from None


def check_steps(steps: int, train_context: int) -> None:
    """Refuses what no run can do, before a model is loaded."""
    if steps < 1:
        raise InputError(f"The number of steps is {steps}; give at least 1.")
    if train_context < 1:
        raise InputError(f"The training context is {train_context}; give at least 1 position.")
