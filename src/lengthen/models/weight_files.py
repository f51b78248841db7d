"""The tensors of a model directory: one file or several, safetensors or weights-only pickles, never code."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lengthen.errors import InputError

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"


def read_weights(directory: Path) -> dict[str, Tensor]:
    """Every tensor of the directory by name, on the CPU, in the dtype of the file.

    Raises InputError where there is no file of weights, where one is damaged or holds more than tensors, or where a
    file that the index names is missing.
    """
    for name in (SAFETENSORS, PICKLE):
        if (directory / name).is_file():
            return _read_file(directory / name)
        if (directory / f"{name}.index.json").is_file():
            return _read_shards(directory / f"{name}.index.json")
    raise InputError(f"{directory} holds no weights; it needs {SAFETENSORS} or {PICKLE}, whole or sharded.")


def write_weights(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes the tensors under their names, as safetensors or as a pickle that loads weights-only.

    A pickle keeps tensors that share memory shared, as a tied head is; safetensors holds each on its own.
    """
    if path.name == PICKLE:
        torch.save(dict(tensors), path)
        return
    written: dict[int, Tensor] = {}
    separate: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        tensor = tensor.contiguous()
        separate[name] = tensor.clone() if storage in written else tensor
        written[storage] = tensor
    save_file(separate, path, metadata={"format": "pt"})


def _read_file(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} is not a readable safetensors file ({_line(error)}); fetch it again.") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a pickle's version: it is read, or refused below
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise InputError(
            f"{path} cannot be read as plain weights, and nothing else is read from a pickle, which may run code "
            f"({_line(error)}); save the model's state_dict() again."
        ) from None
    if not isinstance(loaded, dict) or not all(isinstance(tensor, Tensor) for tensor in loaded.values()):
        raise InputError(f"{path} does not hold tensors by name alone; save the model's state_dict() and nothing more.")
    return {name: tensor.detach() for name, tensor in loaded.items()}


def _read_shards(index: Path) -> dict[str, Tensor]:
    try:
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise InputError(f"{index} is not a readable index of weights; fetch it again.") from None
    tensors: dict[str, Tensor] = {}
    for name in files:
        if Path(name).name != name or not (index.parent / name).is_file():
            raise InputError(f"{index} names {name}, which is not in {index.parent}; fetch all files of the model.")
        tensors |= _read_file(index.parent / name)
    return tensors


def _line(error: Exception) -> str:
    """The first line of what a library says, without its advice on how to run the code in a pickle."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].split(". ")[0].rstrip(".")[:200]
