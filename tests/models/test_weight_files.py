"""The tensors of a model directory: read whole or not at all, from any layout, and never code."""

import json
import pickle

import pytest
import torch
from safetensors.torch import save_file

from lengthen.errors import InputError
from lengthen.models.weight_files import PICKLE, SAFETENSORS, read_weights, write_weights

TENSORS = {
    "a": torch.randn(3, 2, generator=torch.Generator().manual_seed(0)),
    "b": torch.arange(4, dtype=torch.int64),
    "c": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)


@pytest.mark.parametrize("name", [SAFETENSORS, PICKLE])
def test_what_is_written_is_read_in_its_dtypes(name, tmp_path):
    write_weights(TENSORS, tmp_path / name)
    assert_same(read_weights(tmp_path), TENSORS)


@pytest.mark.parametrize("name", [SAFETENSORS, PICKLE])
def test_tensors_that_share_memory_are_written_all_the_same(name, tmp_path):
    tied = {"embedding": TENSORS["a"], "head": TENSORS["a"], "turned": TENSORS["a"].T}
    write_weights(tied, tmp_path / name)
    found = read_weights(tmp_path)
    assert_same(found, tied)
    shared = found["head"].untyped_storage().data_ptr() == found["embedding"].untyped_storage().data_ptr()
    assert shared == (name == PICKLE)


def test_shards_are_put_together_and_safetensors_come_first(tmp_path):
    torch.save({"a": TENSORS["a"]}, tmp_path / "part-1.bin")
    torch.save({"b": TENSORS["b"]}, tmp_path / "part-2.bin")
    index = {"weight_map": {"a": "part-1.bin", "b": "part-2.bin"}}
    (tmp_path / f"{PICKLE}.index.json").write_text(json.dumps(index))
    assert_same(read_weights(tmp_path), {"a": TENSORS["a"], "b": TENSORS["b"]})
    save_file({"c": TENSORS["c"]}, tmp_path / SAFETENSORS)
    assert_same(read_weights(tmp_path), {"c": TENSORS["c"]})


class Opening:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_code_in_a_pickle_is_refused_and_does_not_run(tmp_path):
    (tmp_path / PICKLE).write_bytes(pickle.dumps({"a": Opening(tmp_path / "ran")}))
    with pytest.raises(InputError, match="nothing else is read from a pickle, which may run code"):
        read_weights(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, f"holds no weights; it needs {SAFETENSORS} or {PICKLE}"),
        ({SAFETENSORS: b"\x08\0\0\0\0\0\0\0{"}, "is not a readable safetensors file"),
        ({PICKLE: b""}, "cannot be read as plain weights"),
        ({f"{SAFETENSORS}.index.json": b"[]"}, "is not a readable index of weights"),
        (
            {f"{SAFETENSORS}.index.json": b'{"weight_map": {"a": "gone.safetensors"}}'},
            "names gone.safetensors, which is",
        ),
        (
            {f"{PICKLE}.index.json": b'{"weight_map": {"a": "../a.bin"}}', "../a.bin": b""},
            r"names \.\./a.bin, which is",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(files, message, tmp_path):
    (tmp_path / "model").mkdir()
    for name, content in files.items():
        (tmp_path / "model" / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_weights(tmp_path / "model")
    assert "\n" not in str(caught.value)
