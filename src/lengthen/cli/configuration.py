"""What is set before a command works: the options of --config, quiet libraries, the thread count."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lengthen.cli.options import Common
from lengthen.errors import InputError

MOST_THREADS = 1024
"""Where the system grants fewer than asked for, a process ends without a word."""

_training_options: dict[str, Any] = {}


def file_options(tokens: Sequence[str]) -> list[Any]:
    """What --config says: options of the command for cyclopts, `training:` kept for the trainer."""
    _training_options.clear()
    path = next((b for a, b in itertools.pairwise(tokens) if a == "--config"), None)
    path = path or next((t.partition("=")[2] for t in tokens if t.startswith("--config=")), None)
    if path is None:
        return []
    import yaml
    from cyclopts.config import Dict

    try:
        options = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"The configuration {path} cannot be read ({' '.join(str(error).split())}).") from None
    if not isinstance(options, dict) or not isinstance(options.get("training", {}), dict):
        raise InputError(f"The configuration {path} must hold options by name, and `training` a mapping.")
    _training_options.update(options.pop("training", {}))
    return [Dict(options, use_commands_as_keys=False, source=str(path))]


def prepare(common: Common, *, trains: bool = False) -> dict[str, Any]:
    """Quiet libraries, the thread count; returns the trainer's options of --config, which only a command that trains has."""
    import os

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if not 0 <= common.seed < 2**32:
        raise InputError(f"The seed is {common.seed}; give a number from 0 to {2**32 - 1}.")
    if common.threads is not None:
        if not 1 <= common.threads <= MOST_THREADS:
            raise InputError(f"The number of threads is {common.threads}; give 1 to {MOST_THREADS}.")
        torch.set_num_threads(common.threads)
    if _training_options and not trains:
        raise InputError(f"`training` in {common.config} is for post-train and pretrain; leave it out here.")
    return dict(_training_options)
