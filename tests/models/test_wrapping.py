"""wrap(): the user's own model, the library's numbers, a state in and out, and nothing dropped without a word."""

import copy
import inspect
import pickle

import pytest
import torch

from lengthen import load, unwrap, wrap, zero_state
from lengthen.errors import InputError
from lengthen.models import is_wrapped, weights_fingerprint
from lengthen.models.agreement import relative_error, state_error
from lengthen.models.library_cache import LibraryPath
from lengthen.models.tiny_models import TINY_MODELS, build_tiny_model
from tests.conftest import library_cache, tiny_mamba2

IDS = torch.randint(256, (3, 75), generator=torch.Generator().manual_seed(0))


def masked(left, right):
    mask = torch.ones_like(IDS)
    mask[0, :left] = 0
    mask[2, IDS.shape[1] - right :] = 0
    return mask


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


def test_loss_equals_the_library_s_and_holds_no_logits(shaped_mamba2):
    labels = IDS.masked_fill(masked(9, 4) == 0, -100)
    expected = shaped_mamba2(IDS, labels=labels)
    expected.loss.backward()
    grads = {n: p.grad.clone() for n, p in shaped_mamba2.named_parameters()}
    shaped_mamba2.zero_grad()
    output = wrap(shaped_mamba2)(IDS, labels=labels)
    output.loss.backward()
    assert output.logits is None
    torch.testing.assert_close(output.loss, expected.loss, rtol=1e-5, atol=0)
    for name, parameter in shaped_mamba2.named_parameters():
        assert relative_error(parameter.grad, grads[name]) < 5e-5, name


def test_targets_at_padding_are_not_counted():
    model = wrap(tiny_mamba2())
    mask = masked(9, 4)
    targets = torch.nn.functional.pad(IDS[:, 1:], (0, 1), value=-100)
    found = model(IDS, shift_labels=targets, attention_mask=mask).loss
    expected = model(IDS, shift_labels=targets.masked_fill(mask == 0, -100), attention_mask=mask).loss
    assert torch.equal(found, expected) and found != model(IDS, shift_labels=targets).loss


def test_an_additive_mask_is_refused():
    with pytest.raises(InputError, match="other than 0 and 1"):
        wrap(tiny_mamba2())(IDS, attention_mask=torch.where(masked(3, 0) == 1, 0.0, -1e9))


def test_loss_options_of_the_library():
    model = tiny_mamba2()
    targets = torch.nn.functional.pad(IDS[:, 1:], (0, 1), value=-100)
    wanted = model(IDS, labels=IDS, num_items_in_batch=torch.tensor(1000)).loss
    wrap(model)
    assert torch.allclose(model(IDS, labels=IDS, num_items_in_batch=torch.tensor(1000)).loss, wanted, rtol=1e-5)
    assert torch.allclose(model(IDS, shift_labels=targets).loss, model(IDS, labels=IDS).loss)
    assert torch.equal(model(IDS, logits_to_keep=2).logits, model(IDS).logits[:, -2:])
    as_tuple = model(IDS, return_dict=False)
    assert torch.equal(as_tuple[0], model(IDS).logits) and as_tuple[-1].rows == 3


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


def test_the_library_s_cache_still_works_and_does_not_mix_with_a_state():
    model = tiny_mamba2()
    expected = model(IDS, use_cache=True)
    wrap(model)
    output = model(IDS, use_cache=True)
    assert torch.equal(output.logits, expected.logits) and library_cache(output) is not None
    state = zero_state(model, 3)
    for arguments in (
        {LibraryPath(model).keyword: library_cache(output), "initial_state": state},
        {"use_cache": True, "initial_state": state},
        {"use_cache": True, "reset": IDS > 300},
    ):
        with pytest.raises(TypeError, match="give one"):
            model(IDS, **arguments)


@pytest.mark.parametrize("name", ["past_key_values", "cache_params", "initial_states", "anything"])
def test_an_unknown_keyword_is_an_error(name):
    model = wrap(tiny_mamba2())
    if name == LibraryPath(model).keyword:
        pytest.skip("this release takes its cache under that name")
    with pytest.raises(TypeError, match=name):
        model(IDS, **{name: None})


def test_a_model_without_recurrence_is_refused():
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32)
    )
    with pytest.raises(InputError, match="no recurrent layer"):
        wrap(model)


def test_the_signature_is_the_library_s_plus_two():
    model = tiny_mamba2()
    before = list(inspect.signature(model.forward).parameters)
    after = list(inspect.signature(wrap(model).forward).parameters)
    assert [n for n in after if n not in before] == ["initial_state", "reset"] and [
        n for n in before if n not in after
    ] == []


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


@pytest.mark.parametrize("name", ["Lfm2", "Lfm2Moe", "Lfm3"])
def test_a_model_of_short_convolutions_alone_is_told_that_it_has_no_recurrent_state(name):
    tiny = next(tiny for tiny in TINY_MODELS if tiny.name == name)
    if not tiny.installed:
        pytest.skip(f"the installed transformers has no {name}")
    with pytest.raises(InputError, match=rf"{name}ForCausalLM has no recurrent state: the short convolution model"):
        wrap(build_tiny_model(tiny))


@pytest.mark.parametrize(
    "spoil, match",
    [
        ("missing", "does not exist"),
        ("config", "config.json"),
        ("weights", "cannot be loaded"),
        ("tensor", "lack"),
        ("vocabulary", r"weight in .*model has shape \(256, 32\), but config.json says \(300, 32\)"),
    ],
)
def test_a_damaged_model_directory_is_a_sentence(tmp_path, spoil, match):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    tiny_mamba2().save_pretrained(folder)
    if spoil == "missing":
        folder = tmp_path / "nothing"
    elif spoil == "config":
        (folder / "config.json").unlink()
    elif spoil == "vocabulary":
        settings = (folder / "config.json").read_text().replace('"vocab_size": 256', '"vocab_size": 300')
        (folder / "config.json").write_text(settings)
    elif spoil == "weights":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:2000])
    else:
        tensors = load_file(folder / "model.safetensors")
        tensors.pop("backbone.layers.1.mixer.A_log")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=match):
        load(folder)


def test_a_mixture_of_experts_loads_and_runs_in_float64(tmp_path):
    model = build_tiny_model(next(tiny for tiny in TINY_MODELS if tiny.name == "Jamba"))
    model.save_pretrained(tmp_path)
    ids = IDS[:, :20] % 64
    with torch.no_grad():
        assert relative_error(load(tmp_path, dtype="float64")(ids).logits, wrap(model)(ids).logits) < 1e-5


class Payload:
    """What a pickle may hold instead of weights."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("library", ["transformers", "mamba_ssm"])
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(tmp_path, library):
    model, ran = tmp_path / "model", tmp_path / "ran"
    tiny_mamba2().save_pretrained(model)
    (model / "model.safetensors").unlink()
    if library == "transformers":
        torch.save({"weight": Payload(ran)}, model / "pytorch_model.bin")
    else:
        (model / "config.json").write_text('{"d_model": 32, "n_layer": 2, "ssm_cfg": {"layer": "Mamba2"}}')
        (model / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Payload(ran)}, protocol=4))
    with pytest.raises(InputError, match="nothing else is read from a pickle, which may run code") as caught:
        load(model)
    assert not ran.exists() and "weights_only" not in str(caught.value)
