"""convert(): a Mamba or Mamba-2 language model from one library's checkpoint format to another's, proven on the way."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from lengthen.errors import InputError, ParityError, RunError, disk_is_full
from lengthen.models.checkpoints import FORMATS, Checkpoint, read_checkpoint, write_checkpoint
from lengthen.models.hub import local_directory
from lengthen.models.loading import load_library_model
from lengthen.results import Conversion

TOKENS = 64
TOLERANCE = 1e-5
# What belongs to the text rather than to the weights: copied as it is.
COMPANIONS = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "spiece.model", "chat_template.jinja", "generation_config.json"),
)


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    to: str = "transformers",
    overwrite: bool = False,
    seed: int = 0,
) -> Conversion:
    """Writes the model of one directory into another, in another library's format, with bit-identical weights.

    source: a directory or hub name, in any of the formats. to: "transformers", "mamba_ssm" (MambaLMHeadModel) or "fla".
    overwrite: replace a model that lies in destination. seed: of the random tokens of the comparison.

    What was written is read again and both models run on the same tokens in float32; destination appears only when
    their logits agree to 1e-5 of the largest, whole or not at all. Tokenizer files go along. Returns what was done and
    the largest difference of logits. Raises InputError for a model that the format cannot hold and for a destination
    that exists, ParityError where the logits differ, RunError where the disk is full.
    """
    source, destination = local_directory(source), Path(destination)
    if to not in FORMATS:
        raise InputError(f"The format {to!r} is unknown; choose one of {', '.join(FORMATS)}.")
    _check_destination(source, destination, overwrite)
    checkpoint = read_checkpoint(source)
    if checkpoint.format == to:
        raise InputError(f"{source} is a checkpoint of {to} already; choose another format to convert it to.")

    temporary = destination.with_name(f".{destination.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{destination} cannot be written ({error.strerror}); choose another destination.") from None
    try:
        _write(checkpoint, temporary, to, source, destination)
        difference = _logit_difference(source, checkpoint, temporary, read_checkpoint(temporary), seed)
        _put_in_place(temporary, destination)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Conversion(
        source=str(source),
        destination=str(destination),
        source_format=checkpoint.format,
        destination_format=to,
        family=checkpoint.config.model_type,
        tensors=len(checkpoint.tensors),
        parameters=sum(tensor.numel() for tensor in checkpoint.tensors.values()),
        dtypes=sorted({str(tensor.dtype).removeprefix("torch.") for tensor in checkpoint.tensors.values()}),
        tokens=TOKENS,
        largest_logit_difference=difference,
    )


def _write(checkpoint: Checkpoint, temporary: Path, to: str, source: Path, destination: Path) -> None:
    try:
        write_checkpoint(checkpoint, temporary, to, source)
        for name in COMPANIONS:
            if (source / name).is_file():
                shutil.copyfile(source / name, temporary / name)
    except (OSError, RuntimeError, SafetensorError) as error:
        if not disk_is_full(error):
            raise
        raise RunError(f"{destination} cannot be written: the disk is full; make room, or choose another.") from error


def _check_destination(source: Path, destination: Path, overwrite: bool) -> None:
    if source.resolve().is_relative_to(destination.resolve()):
        raise InputError(f"{destination} holds the model to convert; choose another destination.")
    if not destination.exists():
        return
    if not overwrite:
        raise InputError(f"{destination} exists already; choose another destination, or replace it with --overwrite.")
    if not (destination / "config.json").is_file():
        raise InputError(f"{destination} is not the directory of a model, so it is not replaced; choose another.")


def _logit_difference(source: Path, first: Checkpoint, destination: Path, second: Checkpoint, seed: int) -> float:
    """The largest difference of logits between two models on the same random tokens.

    Raises ParityError where it is more than 1e-5 of the largest logit, or not a number.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(first.config.vocab_size, (1, TOKENS), generator=generator)
    logits = _logits(source, first, tokens)
    difference = float((_logits(destination, second, tokens) - logits).abs().max())
    if not difference <= TOLERANCE * float(logits.abs().max()):
        raise ParityError(
            f"The logits of the converted model differ from those of {source} by {difference:.1e} (largest logit "
            f"{float(logits.abs().max()):.1e}), so it was not written."
        )
    return difference


@torch.no_grad()
def _logits(directory: Path, checkpoint: Checkpoint, tokens: Tensor) -> Tensor:
    """In float32, so that a half-precision rounding hides nothing; a directory of transformers as its library loads it."""
    as_its_library = checkpoint.format == "transformers"
    model = load_library_model(directory, dtype=torch.float32) if as_its_library else checkpoint.model().float()
    return model(tokens, use_cache=False).logits


def _put_in_place(temporary: Path, destination: Path) -> None:
    """One rename; a model that lies there is set aside until then."""
    aside = destination.with_name(f".{destination.name}.{os.getpid()}.replaced")
    if destination.exists():
        destination.rename(aside)
    temporary.rename(destination)
    shutil.rmtree(aside, ignore_errors=True)
