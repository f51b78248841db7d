"""Where the files of a model lie: in a directory, or on the hub, from where they are fetched."""

from __future__ import annotations

from pathlib import Path

from lengthen.errors import InputError

FILES = ["*.json", "*.safetensors", "*.bin", "*.model", "*.txt", "*.jinja"]


def check_directory(model: str | Path) -> None:
    """Raises InputError where this is meant as a directory (not as NAME or OWNER/NAME on the hub) and is none."""
    path = Path(model)
    if path.is_file():
        raise InputError(f"{model} is a file; give the directory that holds a model's config.json, or a hub name.")
    if not path.is_dir() and (str(model).startswith((".", "/", "~")) or str(model).count("/") > 1):
        raise InputError(
            f"The model directory {model} does not exist; give a directory with a config.json, or a hub name."
        )


def local_directory(model: str | Path) -> Path:
    """The directory of a model, fetched first where this is a hub name. Raises InputError where there is none."""
    check_directory(model)
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    try:
        return Path(str(snapshot_download(str(model), allow_patterns=FILES)))
    except Exception as error:  # the hub's and the network's several kinds
        reason = " ".join(str(error).split()).rstrip(".")[:200]
        raise InputError(f"There is no directory {model}, and it cannot be fetched from the hub ({reason}).") from None


def config_directory(model: str | Path) -> Path | None:
    """A directory that holds the model's config.json, the only file fetched; None where none can be had."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import hf_hub_download

    try:
        return Path(str(hf_hub_download(str(model), "config.json"))).parent
    except Exception:  # the library that loads the model says what is wrong with its name
        return None
