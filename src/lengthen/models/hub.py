"""Where the files of a model lie: in a directory, or on the hub, from where they are fetched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lengthen.errors import InputError, one_line

FILES = ["*.json", "*.safetensors", "*.bin", "*.model", "*.txt", "*.jinja"]


def check_directory(model: str | Path) -> None:
    """Raises InputError where this is meant as a directory (not as NAME or OWNER/NAME on the hub) and is none."""
    path = Path(model)
    if not str(model):
        raise InputError("The model has no name; give the directory that holds its config.json, or a hub name.")
    if path.is_file():
        raise InputError(f"{model} is a file; give the directory that holds a model's config.json, or a hub name.")
    if (path / "model" / "config.json").is_file() and not (path / "config.json").exists():
        raise InputError(f"{model} is the folder of a run; its model is {path / 'model'}.")
    in_run = (path.parent / "metrics.jsonl").is_file()
    if not path.is_dir() and (str(model).startswith((".", "/", "~")) or str(model).count("/") > 1 or in_run):
        raise InputError(
            f"The model directory {model} does not exist; give a directory with a config.json, or a hub name."
        )


def local_directory(model: str | Path) -> Path:
    """The directory of a model, fetched first where this is a hub name. Raises InputError where there is none."""
    check_directory(model)
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    with _told(model):
        return Path(str(snapshot_download(str(model), allow_patterns=FILES)))


def config_directory(model: str | Path) -> Path:
    """A directory that holds the model's config.json, of a hub name the only file fetched. Raises as above."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import hf_hub_download

    with _told(model):
        return Path(str(hf_hub_download(str(model), "config.json"))).parent


@contextmanager
def _told(model: str | Path) -> Iterator[None]:
    """Turns the several kinds of errors of the hub and the network into one sentence."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        yield
    except Exception as error:
        reasons = {
            LocalEntryNotFoundError: "it does not answer, and nothing of that name was fetched before",
            GatedRepoError: "its owner must grant access first; then log in with `hf auth login`",
            RepositoryNotFoundError: "it has none of that name, or a private one",
            RemoteEntryNotFoundError: "what it has of that name holds no config.json",
        }
        reason = next((told for kind, told in reasons.items() if isinstance(error, kind)), one_line(error))
        raise InputError(f"There is no directory {model}, and the hub gives no such model: {reason}.") from None
