"""Where a model's files lie: a directory, or a hub name whose failures are told in one sentence."""

import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
)

from lengthen import convert, load
from lengthen.errors import InputError
from lengthen.models.hub import check_directory, config_directory, local_directory
from tests.models.mamba_ssm_checkpoints import FIRST, config, random_weights, write


def test_a_hub_name_is_fetched(tmp_path, monkeypatch):
    import huggingface_hub

    source = write(tmp_path / "source", config(FIRST), random_weights(FIRST))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda name, file: str(source / file))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(source))
    assert load("someone/mamba").config.hidden_size == 24
    assert convert("someone/mamba", tmp_path / "out").source_format == "mamba_ssm"

    def unreachable(*_, **__):
        raise OSError("no network\nat all")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    for read in (load, lambda name: convert(name, tmp_path / "other")):
        with pytest.raises(InputError, match=r"There is no directory someone/mamba, .*: no network at all\.$"):
            read("someone/mamba")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", r"^The model has no name; give the directory"),
        ("./nothing", r"^The model directory \./nothing does not exist;"),
        ("/nothing", r"^The model directory /nothing does not exist;"),
        ("a/b/c", r"^The model directory a/b/c does not exist;"),
    ],
)
def test_what_can_be_no_hub_name_is_a_missing_directory(name, message):
    with pytest.raises(InputError, match=message):
        check_directory(name)


def test_a_mistyped_name_in_the_folder_of_a_run_is_a_missing_directory(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^The model directory run/modle does not exist;"):
        check_directory("run/modle")


def test_names_that_the_hub_may_have_pass(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("gpt2", "owner/name", "owner/name-1.3b"):
        check_directory(name)


def test_a_file_and_the_folder_of_a_run_are_told_from_a_model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    with pytest.raises(InputError, match=r"config\.json is a file; give the directory that holds"):
        check_directory(tmp_path / "model/config.json")
    with pytest.raises(InputError, match=rf"is the folder of a run; its model is {tmp_path / 'model'}\.$"):
        check_directory(tmp_path)
    assert local_directory(tmp_path / "model") == config_directory(tmp_path / "model") == tmp_path / "model"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (LocalEntryNotFoundError, "it does not answer, and nothing of that name was fetched before"),
        (RepositoryNotFoundError, "it has none of that name, or a private one"),
        (RemoteEntryNotFoundError, "what it has of that name holds no config.json"),
        (GatedRepoError, "its owner must grant access first; then log in with `hf auth login`"),
    ],
)
def test_each_refusal_of_the_hub_has_its_words(kind, told, monkeypatch):
    import huggingface_hub

    def refusing(*_, **__):
        raise kind.__new__(kind)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refusing)
    with pytest.raises(InputError) as caught:
        config_directory("owner/name")
    assert str(caught.value) == f"There is no directory owner/name, and the hub gives no such model: {told}."
