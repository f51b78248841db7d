"""load(): a recurrent language model from a directory or hub name, wrapped; and the tokenizer that belongs to it."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedConfig

from lengthen.errors import InputError, one_line
from lengthen.models.checkpoints import checkpoint_format, library_class, read_checkpoint, read_config
from lengthen.models.fla_library import import_fla_for
from lengthen.models.hub import check_directory, config_directory, local_directory
from lengthen.models.wrapping import wrap

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model")


def load(
    model: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    trust_remote_code: bool = False,
) -> nn.Module:
    """The model of a directory or hub name, wrapped, in evaluation mode.

    dtype: of the weights (as saved unless said). device: where to put it. Only safetensors or weights-only files are
    read. Raises InputError for a missing directory, damaged weights, or a model without recurrence.
    """
    return wrap(load_library_model(model, dtype=dtype, device=device, trust_remote_code=trust_remote_code))


def load_library_model(
    model: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    trust_remote_code: bool = False,
) -> nn.Module:
    """The same, as its library loads it: not wrapped.

    A checkpoint of mamba_ssm's language models, or of fla's Mamba and Mamba2, becomes transformers' class of the same
    mathematics; neither library need be installed.
    """
    check_directory(model)
    wanted: Any = dtype_named(dtype)
    where = config_directory(model)
    if checkpoint_format(where) != "transformers":
        converted = read_checkpoint(local_directory(model)).model()
        return converted.to(device=device, dtype=None if wanted == "auto" else wanted)
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    import_fla_for(where)
    # The automatic class alone knows a checkpoint's own code, but takes fla's classes where fla was imported.
    loader = AutoModelForCausalLM if trust_remote_code else library_class(where)

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: Any = loader.from_pretrained(
                str(model),
                dtype=wanted,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
            )
    except pickle.UnpicklingError as error:
        raise InputError(
            f"The weights in {model} cannot be read as plain weights, and nothing else is read from a pickle, which may "
            "run code; save the model as safetensors."
        ) from error
    except SafetensorError as error:
        raise InputError(
            f"The weights in {model} are damaged ({one_line(error)}); fetch or save them again."
        ) from error
    except Exception as error:
        raise InputError(f"The model {model} cannot be loaded ({one_line(error)}).") from error
    finally:
        if bars:
            logging.enable_progress_bar()
    loaded, info = found
    missing = sorted(info["missing_keys"])
    if missing:
        raise InputError(
            f"The weights in {model} lack {len(missing)} tensors, such as {missing[0]}; save the model again."
        )
    for name, held, expected in sorted(info["mismatched_keys"]):
        raise InputError(f"{name} in {model} has shape {tuple(held)}, but config.json says {tuple(expected)}.")
    if loaded.dtype == torch.float64 and hasattr(loaded, "set_experts_implementation"):
        loaded.set_experts_implementation("eager")  # the grouped products know no float64
    return loaded.to(device).eval() if device is not None else loaded.eval()


def configuration_of(model: str | Path) -> PreTrainedConfig:
    """The configuration of a directory or hub name, as transformers has it. Raises InputError where it knows no such."""
    from transformers import AutoConfig

    check_directory(model)
    where = config_directory(model)
    if checkpoint_format(where) != "transformers":
        return read_config(where)
    import_fla_for(where)
    kind = getattr(library_class(where), "config_class", AutoConfig)  # fla takes some over, where it is imported
    try:
        return kind.from_pretrained(str(model), trust_remote_code=False)  # where it isn't said, transformers asks
    except Exception as error:
        raise InputError(f"The configuration of {model} cannot be read ({one_line(error)}).") from error


def tokenizer_for(model: str | Path) -> Any:
    """The tokenizer that lies beside a model; "bytes" for a directory without one whose vocabulary is that of bytes.

    What a hub name stands for is not looked at here: the name is taken for its tokenizer's too.
    Raises InputError where a directory holds no tokenizer and has fewer than 256 or more than 320 ids.
    """
    path = Path(model)
    if path.is_dir() and not any((path / name).exists() for name in TOKENIZER_FILES):
        size = configuration_of(model).get_text_config().vocab_size
        if size < 256:
            raise InputError(
                f"{model} holds no tokenizer, and its vocabulary of {size} ids is too small for bytes; give --tokenizer."
            )
        if size > 320:
            raise InputError(f"{model} holds no tokenizer; save one beside the model, or give --tokenizer.")
        return "bytes"
    return str(model)


def dtype_named(dtype: torch.dtype | str | None) -> torch.dtype | str:
    """A dtype by its name; "auto" where none is given. Raises InputError for an unknown name."""
    if dtype is None:
        return "auto"
    if isinstance(dtype, str):
        names = {"float32": torch.float32, "fp32": torch.float32, "bfloat16": torch.bfloat16, "bf16": torch.bfloat16}
        names |= {"float16": torch.float16, "fp16": torch.float16, "float64": torch.float64, "auto": "auto"}  # type: ignore[dict-item]
        if dtype not in names:
            raise InputError(f"dtype {dtype!r} is unknown; choose float32, bfloat16, float16, float64 or auto.")
        return names[dtype]
    return dtype
