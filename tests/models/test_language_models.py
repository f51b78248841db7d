"""The forward of a wrapped language model: the library's arguments, losses and cache, and a state beside them."""

import inspect

import pytest
import torch

from lengthen import wrap, zero_state
from lengthen.errors import InputError
from lengthen.models.agreement import relative_error
from lengthen.models.library_cache import LibraryPath
from tests.conftest import library_cache, tiny_mamba2
from tests.models.padded_rows import IDS, masked


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


def test_the_signature_is_the_library_s_plus_two():
    model = tiny_mamba2()
    before = list(inspect.signature(model.forward).parameters)
    after = list(inspect.signature(wrap(model).forward).parameters)
    assert [n for n in after if n not in before] == ["initial_state", "reset"] and [
        n for n in before if n not in after
    ] == []
