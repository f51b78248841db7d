"""The plan's figures are those of the run: counted tokens, measured states and banks, activations near what is kept."""

import json

import pytest
import torch

from lengthen import StatePassing, post_train, wrap, zero_state
from lengthen.cli import main
from lengthen.errors import InputError
from lengthen.training import plan
from tests.conftest import tiny_mamba2


def test_tokens_states_and_weights_are_the_run_s(plays):
    model, intervention = tiny_mamba2(), StatePassing()
    found = plan(model, train_context=32, steps=2, rows=8, accumulation=2)
    post_train(model, plays[0], intervention=intervention, train_context=32, steps=2, rows=8, accumulation=2)
    kept = {id(state): state.bytes for state, _ in intervention.bank._rows.values()}
    assert found.bank == sum(kept.values()) and found.states == 2 * 4 * zero_state(model, 1).bytes
    assert (found.tokens, found.tokens_a_step, found.rows) == (2 * 8 * 32, 8 * 32, 4)
    assert found.weights == found.gradients == sum(p.numel() * 4 for p in model.parameters())


def mamba1(layers):
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(MambaConfig(hidden_size=64, num_hidden_layers=layers, state_size=16, vocab_size=64))


def mamba2(layers):
    return tiny_mamba2(hidden_size=64, num_hidden_layers=layers, num_heads=8, vocab_size=64)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("layers", [2, 8])
@pytest.mark.parametrize("make", [mamba1, mamba2])
def test_activations_are_near_what_autograd_keeps(make, layers, checkpointing):
    model = wrap(make(layers)).train()
    config = {"activation_checkpointing": checkpointing}
    found = plan(model, train_context=256, rows=4, config=config).activations
    if checkpointing:
        model.activation_checkpointing_enable()
    own, kept = {p.untyped_storage().data_ptr() for p in model.parameters()}, {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes(), tensor
        return tensor

    ids = torch.randint(64, (4, 256))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(ids, labels=ids)
    measured = sum(size for size, _ in kept.values())
    one_block = plan(model, train_context=256, rows=4).activations / layers if checkpointing else 0
    assert 0.5 < found / (measured + one_block) < 2


def test_processes_share(plays):
    one, four = (plan(tiny_mamba2(), train_context=32, rows=8, processes=n, config={"fsdp": True}) for n in (1, 4))
    for name in ("weights", "gradients", "optimiser", "states", "bank", "activations"):
        assert getattr(one, name) == 4 * getattr(four, name)
    assert plan(tiny_mamba2(), train_context=32, rows=8, processes=4).weights == one.weights
    assert plan(tiny_mamba2(), train_context=32, intervention="zero").bank == 0
    assert 2 * plan(tiny_mamba2(), train_context=32, dtype="bf16").weights == one.weights
    with pytest.raises(InputError, match="cannot be shared by 3 processes"):
        plan(tiny_mamba2(), train_context=32, rows=8, processes=3)
    with pytest.raises(InputError, match="0 processes"):
        plan(tiny_mamba2(), train_context=32, rows=8, processes=0)


def test_a_dry_run_reads_no_weights_and_leaves_nothing(capsys, tmp_path):
    tiny_mamba2().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    arguments = ["post-train", str(tmp_path / "model"), "--data", "nowhere", "--train-context", "32", "--dry-run"]
    arguments += ["--out", str(tmp_path / "run"), "--processes", "2"]
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit) as exit_:
            main([*arguments, *more])
        assert exit_.value.code == 0
        out = capsys.readouterr().out
    assert json.loads(out)["processes"] == 2 and json.loads(out)["tokens"] == 500 * 16 * 32
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
