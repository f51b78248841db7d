"""wrap(): the user's own model, the library's numbers, a state in and out, and nothing dropped without a word."""

import copy
import pickle

import pytest
import torch

from lengthen import load, unwrap, wrap, zero_state
from lengthen.models import is_wrapped, weights_fingerprint
from lengthen.models.agreement import relative_error, state_error
from tests.conftest import tiny_mamba2
from tests.models.padded_rows import IDS, masked


@torch.no_grad()
def test_logits_equal_the_library_s(shaped_mamba2):
    expected = shaped_mamba2(IDS).logits
    assert relative_error(wrap(shaped_mamba2)(IDS).logits, expected) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("left, right", [(9, 0), (0, 11), (7, 5)])
def test_padded_logits_equal_the_library_s(shaped_mamba2, left, right):
    mask = masked(left, right)
    expected = shaped_mamba2(IDS, attention_mask=mask).logits
    found = wrap(shaped_mamba2)(IDS, attention_mask=mask).logits
    assert relative_error(found[mask.bool()], expected[mask.bool()]) < 1e-5


def test_padding_inside_a_row_is_the_identity():
    model = wrap(tiny_mamba2())
    mask = torch.ones_like(IDS)
    mask[:, 20:33] = 0
    with torch.no_grad():
        holes = model(IDS, attention_mask=mask)
        dense = model(torch.cat([IDS[:, :20], IDS[:, 33:]], 1))
    assert relative_error(holes.logits[mask.bool()].view_as(dense.logits), dense.logits) < 1e-6
    assert state_error(holes.final_state, dense.final_state) < 1e-6


def test_a_reset_on_padding_takes_effect_before_the_next_real_token():
    model = wrap(tiny_mamba2())
    mask, reset = torch.ones_like(IDS), torch.zeros_like(IDS, dtype=torch.bool)
    mask[:, 20:33], mask[:, 70:] = 0, 0
    reset[0, 25], reset[1, 33], reset[2, 72] = True, True, True
    with torch.no_grad():
        found = model(IDS, attention_mask=mask, reset=reset)
        second = model(IDS[:2, 33:70])
    assert relative_error(found.logits[:2, 33:70], second.logits) < 1e-6
    assert state_error(found.final_state.index([0, 1]), second.final_state) < 1e-6
    assert all(t[2].abs().sum() == 0 for named in found.final_state.tensors.values() for t in named.values())


def test_unwrapped_again_it_is_the_library_s_own(shaped_mamba2):
    expected = shaped_mamba2(IDS).logits
    names = set(vars(shaped_mamba2))
    unwrap(wrap(shaped_mamba2))
    assert not is_wrapped(shaped_mamba2) and set(vars(shaped_mamba2)) == names
    assert torch.equal(shaped_mamba2(IDS).logits, expected)


def test_generate_gives_the_same_tokens(shaped_mamba2):
    prompts = {"input_ids": IDS[:2, :30], "attention_mask": masked(6, 0)[:2, :30]}
    expected = shaped_mamba2.generate(**prompts, max_new_tokens=10, do_sample=False)
    wrap(shaped_mamba2)
    assert torch.equal(shaped_mamba2.generate(**prompts, max_new_tokens=10, do_sample=False), expected)
    assert torch.equal(shaped_mamba2.generate(**prompts, max_new_tokens=10, do_sample=False, use_cache=False), expected)


# -- what others do to a wrapped model ---------------------------------------------------------------------------------


def states_matter(model, reference):
    """Whether the model still reads the initial state: its logits are the reference's."""
    state = zero_state(reference, 3).map(lambda t, _: torch.ones_like(t))
    with torch.no_grad():
        found, expected = model(input_ids=IDS, initial_state=state), reference(input_ids=IDS, initial_state=state)
        plain = reference(input_ids=IDS)
    return (
        relative_error(found.logits.float(), expected.logits) < 1e-6
        and relative_error(expected.logits, plain.logits) > 1e-2
    )


def test_wrapping_twice_changes_nothing():
    model = wrap(tiny_mamba2())
    forward = model.forward
    assert wrap(model) is model and model.forward == forward and states_matter(model, wrap(tiny_mamba2()))


def test_a_copy_is_independent():
    model = wrap(tiny_mamba2())
    other = copy.deepcopy(model)
    assert is_wrapped(other) and other.forward.__self__ is other
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert states_matter(other, wrap(tiny_mamba2()))


def test_pickle_keeps_the_wrapping():
    model = pickle.loads(pickle.dumps(wrap(tiny_mamba2())))
    assert is_wrapped(model) and states_matter(model, wrap(tiny_mamba2()))
    output = pickle.loads(pickle.dumps(model(IDS)))
    assert output.final_state.rows == 3 and output.logits.shape == (3, 75, 256)


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("first", ["wrap", "prepare"])
def test_accelerate_prepares_and_unwraps_without_dropping_the_state(precision, first):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    accelerator = Accelerator(mixed_precision=precision, cpu=True)
    model = tiny_mamba2()
    prepared = accelerator.prepare(wrap(model)) if first == "wrap" else wrap(accelerator.prepare(model))
    assert is_wrapped(prepared)
    output = prepared(input_ids=IDS, labels=IDS, initial_state=zero_state(prepared, 3))
    assert all(t.dtype == torch.float32 for named in output.final_state.tensors.values() for t in named.values())
    unwrapped = accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)
    assert is_wrapped(unwrapped) and states_matter(unwrapped, wrap(tiny_mamba2()))
    AcceleratorState._reset_state(True)


def test_compiled_it_gives_the_same():
    model = wrap(tiny_mamba2())
    compiled = torch.compile(model, backend="aot_eager")
    assert is_wrapped(compiled) and states_matter(compiled, wrap(tiny_mamba2()))


@pytest.mark.parametrize("first", ["wrap", "peft"])
def test_lora_changes_the_output_and_gets_gradients(first):
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["in_proj"], init_lora_weights=False)
    model = tiny_mamba2()
    adapted = get_peft_model(wrap(model), config) if first == "wrap" else wrap(get_peft_model(model, config))
    assert is_wrapped(adapted)
    output = adapted(input_ids=IDS, labels=IDS, initial_state=zero_state(adapted, 3))
    output.loss.backward()
    trained = {n for n, p in adapted.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert trained and all("lora" in n for n in trained)
    assert (output.loss - wrap(tiny_mamba2())(input_ids=IDS, labels=IDS).loss).abs() > 1e-4


def test_save_pretrained_loads_in_the_plain_library(tmp_path, shaped_mamba2):
    from transformers import Mamba2ForCausalLM

    wrap(shaped_mamba2).save_pretrained(tmp_path)
    plain = Mamba2ForCausalLM.from_pretrained(tmp_path)
    assert not is_wrapped(plain)
    with torch.no_grad():
        assert relative_error(plain(IDS).logits, shaped_mamba2(IDS).logits) < 1e-5
    assert weights_fingerprint(load(tmp_path)) == weights_fingerprint(shaped_mamba2)
