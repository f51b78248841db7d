"""What a fit may use and is counted for, and files tied to the weights."""

import json

import pytest
import torch

from lengthen.errors import InputError
from lengthen.training_free import Calibration, load_fitted, method_of
from tests.training_free.small_models import CALIBRATION, IDS, logits, small_model


def test_a_fit_names_what_it_lacks():
    model = small_model("Mamba2")
    with pytest.raises(InputError, match="constant-delta needs the training context; give it"):
        method_of("constant-delta").fit(model)
    with pytest.raises(InputError, match="constant-delta needs the length in use"):
        method_of("constant-delta").fit(model, Calibration(train_context=32))
    with pytest.raises(InputError, match="decay-matching needs calibration text"):
        method_of("decay-matching").fit(model, Calibration(train_context=32, length=64))
    with pytest.raises(InputError, match="is not wrapped"):
        method_of("hard-reset:period=2").fit(type(model)(model.config))


def test_tokens_read_are_counted():
    model, calibration = small_model("Mamba2"), Calibration(train_context=32, length=64, text=CALIBRATION)
    for times in (1, 2):
        fitted = method_of("decay-matching").fit(model, calibration)
        assert (fitted.tokens_read, fitted.forwards) == (96, 1)
        assert (calibration.tokens_read, calibration.forwards) == (96 * times, times)
    fitted = method_of("constant-delta").fit(model, calibration)
    assert (fitted.tokens_read, fitted.forwards, calibration.tokens_read) == (0, 0, 192)


@torch.no_grad()
def test_a_fitted_method_comes_back_from_its_file_for_its_weights_alone(tmp_path):
    model = small_model("Mamba2")
    fitted = method_of("decay-matching:share=0.2").fit(model, Calibration(32, 128, CALIBRATION))
    fitted.save(tmp_path)
    loaded = load_fitted(tmp_path)
    assert loaded.method == fitted.method and (loaded.tokens_read, loaded.forwards) == (96, 1)
    with fitted.apply(model):
        expected = logits(model(IDS))
    with loaded.apply(model):
        assert torch.equal(logits(model(IDS)), expected)
    model.backbone.layers[0].mixer.D[0] += 1
    with pytest.raises(InputError, match=f"decay-matching was fitted to the weights {fitted.weights}"):
        loaded.apply(model).__enter__()


def test_what_is_no_fitted_method_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no fitted method"):
        load_fitted(tmp_path)
    method_of("hard-reset:period=2").fit(small_model("GRU")).save(tmp_path)
    document = json.loads((tmp_path / "method.json").read_text())
    del document["weights"]
    (tmp_path / "method.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="holds no fitted method that can be read"):
        load_fitted(tmp_path)
    (tmp_path / "method.json").write_text(json.dumps({"name": "gone", "settings": {}}))
    with pytest.raises(InputError, match="There is no training-free method 'gone'"):
        load_fitted(tmp_path)
