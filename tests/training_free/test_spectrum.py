"""Decays clipped to their quantiles: which stay bit for bit, and where the others end."""

import pytest
import torch

from lengthen.errors import InputError
from lengthen.training_free import method_of
from lengthen.training_free.spectrum import winsorised
from lengthen.training_free.weight_edits import rates
from tests.training_free.small_models import small_model


def test_winsorising_by_hand():
    """Decays 0.1, 0.2, ..., 0.9 clipped at their quartiles are 0.3, 0.3, 0.3, 0.4, ..., 0.7, 0.7, 0.7."""
    decays = torch.arange(1, 10, dtype=torch.float64) / 10
    log_rates = decays.log().neg().log().float()
    found = winsorised(log_rates, 0.25)
    torch.testing.assert_close(torch.exp(-torch.exp(found.double())), decays.clamp(0.3, 0.7), rtol=0, atol=1e-6)
    assert torch.equal(found[3:6], log_rates[3:6])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ends_come_in_and_all_between_stays_bit_for_bit(dtype):
    """Of 101 rates the quantiles at 0.1 and 0.9 are entries: ten at each end come in to them."""
    log_rates = torch.linspace(-3, 1, 101).to(dtype)
    order = torch.randperm(101, generator=torch.Generator().manual_seed(0))
    found = winsorised(log_rates[order].view(1, 101), 0.1)
    assert found.dtype == dtype and found.shape == (1, 101)
    back = found[0][order.argsort()]
    assert torch.equal(back, log_rates.clamp(log_rates[10], log_rates[90]))
    assert torch.equal(winsorised(log_rates, 0), log_rates)


def test_each_layer_is_clipped_by_its_own_quantiles():
    model = small_model("Mamba2")
    for block, shift in zip(model.backbone.layers, (0.0, 2.0)):
        block.mixer.A_log.data = torch.arange(4.0) + shift
    fitted = method_of("spectrum-winsorising:quantile=0.3").fit(model)
    assert fitted.tensors.keys() == rates("a method", model).keys()
    for name, shift in zip(fitted.tensors, (0.0, 2.0)):
        found = fitted.tensors[name]
        assert found[0] > shift and found[3] < 3 + shift and found[1:3].tolist() == [1 + shift, 2 + shift]


def test_a_quantile_of_one_half_is_refused():
    sentence = r"^The quantile of spectrum-winsorising is 0\.5; give 0 or more, below 0\.5\."
    with pytest.raises(InputError, match=sentence):
        method_of("spectrum-winsorising:quantile=0.5")
