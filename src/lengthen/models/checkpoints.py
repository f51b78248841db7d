"""A Mamba or Mamba-2 language model on disk, whichever library wrote it: its format, configuration and tensors."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedConfig,
)

from lengthen.errors import InputError, one_line
from lengthen.models import fla_format, mamba_ssm_format
from lengthen.models.weight_files import PICKLE, SAFETENSORS, read_weights, write_weights

CLASSES: dict[str, tuple[type[PreTrainedConfig], Any]] = {
    "mamba": (MambaConfig, MambaForCausalLM),
    "mamba2": (Mamba2Config, Mamba2ForCausalLM),
}
EMBEDDING, HEAD = "backbone.embeddings.weight", "lm_head.weight"


@dataclass(frozen=True)
class Format:
    """How a library lays out a model's directory.

    to_library and from_library: config.json's settings <-> transformers' configuration. names: of tensors, its own ->
    transformers', where they differ. keeps_tied_head: whether a head that is the embedding is written too.
    """

    to_library: Callable[[Mapping[str, Any], Path], PreTrainedConfig]
    from_library: Callable[[PreTrainedConfig, Path], dict[str, Any]]
    weights: str = SAFETENSORS
    names: Mapping[str, str] = field(default_factory=dict)
    keeps_tied_head: bool = False


def _as_transformers(settings: Mapping[str, Any], where: Path) -> PreTrainedConfig:
    kind = settings.get("model_type")
    if kind not in CLASSES:
        raise InputError(f"{where} holds a model of type {kind!r}; only Mamba and Mamba-2 models can be converted.")
    try:
        return CLASSES[kind][0].from_dict(dict(settings))
    except Exception as error:  # transformers' validation raises several kinds
        raise InputError(f"{where / 'config.json'} does not describe a {kind} model ({one_line(error)}).") from None


def _from_transformers(config: PreTrainedConfig, where: Path) -> dict[str, Any]:
    return json.loads(config.to_json_string())


FORMATS = {
    "transformers": Format(_as_transformers, _from_transformers),
    "mamba_ssm": Format(
        mamba_ssm_format.to_library,
        mamba_ssm_format.from_library,
        weights=PICKLE,
        names=mamba_ssm_format.NAMES,
        keeps_tied_head=True,
    ),
    "fla": Format(fla_format.to_library, fla_format.from_library),
}


@dataclass(frozen=True)
class Checkpoint:
    """What a directory holds, in transformers' words.

    tensors: by transformers' names, in the dtype of the file; without the head where that is the embedding.
    """

    format: str
    config: PreTrainedConfig
    tensors: dict[str, Tensor]

    @functools.cached_property
    def dtype(self) -> torch.dtype:
        """The narrowest dtype that holds every tensor exactly."""
        return functools.reduce(torch.promote_types, (tensor.dtype for tensor in self.tensors.values()))

    def model(self) -> nn.Module:
        """transformers' class with these tensors, each in its own dtype, in evaluation mode."""
        model: Any = _empty(self.config)
        head = {HEAD: self.tensors[EMBEDDING]} if self.config.tie_word_embeddings else {}
        model.load_state_dict({**self.tensors, **head}, assign=True)
        model.tie_weights()
        model.config.dtype = self.dtype
        return model.eval()


def checkpoint_format(directory: Path) -> str:
    """Which of FORMATS a directory is in, by what config.json says. Raises InputError where it is not readable."""
    settings = _settings(directory)
    if mamba_ssm_format.recognises(settings):
        return "mamba_ssm"
    return "fla" if fla_format.recognises(settings) else "transformers"


def library_class(directory: Path) -> Any:
    """transformers' own class for a Mamba or Mamba-2 model in its format, its automatic class for any other.

    Once fla is imported, the automatic class takes every Mamba for one of fla's, whose configuration it is not.
    """
    kind = _settings(directory).get("model_type")
    return CLASSES[kind][1] if kind in CLASSES else AutoModelForCausalLM


def read_config(directory: Path) -> PreTrainedConfig:
    """transformers' configuration of the model in a directory of any format."""
    return FORMATS[checkpoint_format(directory)].to_library(_settings(directory), directory)


def read_checkpoint(directory: Path) -> Checkpoint:
    """Reads a model's directory, whichever library wrote it.

    Raises InputError for a model that is not Mamba or Mamba-2, an option without a counterpart in transformers, and
    tensors that are missing, not expected, of another shape than config.json says, or not floating-point.
    """
    name, config = checkpoint_format(directory), read_config(directory)
    layout = FORMATS[name]
    embedding, head = (_theirs(layout).get(own, own) for own in (EMBEDDING, HEAD))
    tensors = read_weights(directory)
    if config.tie_word_embeddings and embedding in tensors:
        tensors.setdefault(head, tensors[embedding])
    _check_tensors(tensors, _renamed(_empty(config).state_dict(), _theirs(layout)), directory)
    if config.tie_word_embeddings and not torch.equal(tensors.pop(head), tensors[embedding]):
        raise InputError(f"{directory} ties its head to the embedding, but holds a {head} that differs from it.")
    return Checkpoint(name, config, _renamed(tensors, layout.names))


def write_checkpoint(checkpoint: Checkpoint, directory: Path, to: str, where: Path) -> None:
    """Writes config.json and the weights into an existing directory in another format.

    where: the model's own directory, for messages. Raises InputError for what that format cannot say.
    """
    layout = FORMATS[to]
    config = copy.deepcopy(checkpoint.config)
    config.dtype = checkpoint.dtype
    config.architectures = [CLASSES[config.model_type][1].__name__]
    settings = layout.from_library(config, where)
    (directory / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    tensors = dict(checkpoint.tensors)
    if config.tie_word_embeddings and layout.keeps_tied_head:
        tensors[HEAD] = tensors[EMBEDDING]
    write_weights(_renamed(tensors, _theirs(layout)), directory / layout.weights)


def _settings(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"), object_hook=_special_floats)
    except FileNotFoundError:
        if (directory / "metrics.jsonl").is_file():
            raise InputError(f"{directory} is the folder of a run that has not ended; it holds no model yet.") from None
        raise InputError(f"{directory} holds no config.json; give a directory written by save_pretrained.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not readable JSON ({error}); fetch it again.") from None
    if not isinstance(settings, dict):
        raise InputError(f"{path} does not hold settings by name; fetch it again.")
    return settings


def _special_floats(value: dict[str, Any]) -> Any:
    """transformers' way to write an infinite number in JSON."""
    return float(value["__float__"]) if set(value) == {"__float__"} else value


def _theirs(layout: Format) -> dict[str, str]:
    """The names of tensors the other way round: transformers' -> the format's."""
    return {ours: theirs for theirs, ours in layout.names.items()}


def _renamed(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    return {names.get(name, name): tensor for name, tensor in tensors.items()}


def _empty(config: PreTrainedConfig) -> nn.Module:
    """The library's class without memory for its tensors."""
    with torch.device("meta"):
        return CLASSES[config.model_type][1](copy.deepcopy(config))


def _check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], directory: Path) -> None:
    """Whether the file's tensors are those of the model, no more and no fewer, each of its shape."""
    missing, extra = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
    if missing:
        raise InputError(
            f"The weights in {directory} lack {len(missing)} of {len(expected)} tensors, such as {missing[0]}; fetch or "
            "save the model again."
        )
    if extra:
        raise InputError(
            f"The weights in {directory} hold {len(extra)} tensors that the model in config.json has no place for, such "
            f"as {extra[0]}."
        )
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise InputError(
                f"{name} in {directory} has shape {tuple(tensor.shape)}, but config.json says "
                f"{tuple(expected[name].shape)}."
            )
        if not tensor.is_floating_point():
            raise InputError(f"{name} in {directory} is {tensor.dtype}; only floating-point weights can be read.")
