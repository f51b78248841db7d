"""xLSTM: the mLSTM layers of transformers, and of NX-AI's package where it is installed."""

import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.xlstm.modeling_xlstm import xLSTMPreTrainedModel

from lengthen import check, stream, wrap, zero_state
from lengthen.errors import InputError
from lengthen.models.agreement import relative_error, state_error
from lengthen.models.library_cache import LibraryPath
from tests.conftest import library_cache
from tests.models.family_properties import *  # noqa: F403
from tests.models.family_properties import IDS, PLAIN, TEXT, InFloat64, builder

CLASSES = {
    "xLSTM": {
        "keys half as long as values": {},
        "one projection, biases, keys as long as values, low caps": {
            "weight_mode": "fused",
            "use_bias": True,
            "qk_dim_factor": 1.0,
            "num_heads": 2,
            "gate_soft_cap": 3.0,
            "output_logit_soft_cap": 5.0,
            "chunk_size": 16,
        },
    },
}


def shape_builder(name, options):
    """The builder of these options, whose forget gates are open where the library would draw them so."""

    def build(seed=0, **more):
        model = builder(name, options)(seed, **more)
        for parameter, bias in model.named_parameters():
            if parameter.endswith("ifgate_preact.bias"):
                bias.data[len(bias) // 2 :] += 3
        return model

    return build


@pytest.fixture(autouse=True)
def plain_initialisation(monkeypatch):
    """The library's own cannot initialise the gates where they are one projection."""
    monkeypatch.setattr(xLSTMPreTrainedModel, "_init_weights", PreTrainedModel._init_weights)


@pytest.fixture
def library_heeds_masks():
    return False


@pytest.fixture
def library_states():
    return lambda _, output: [matrix for matrix, _, _ in library_cache(output).rnn_state.values()]


@pytest.fixture
def adapted_layers():
    return ["ffn.proj_down", "out_proj"]


@pytest.fixture
def recurrence_parameter():
    return "gate_preact.bias"


@pytest.fixture
def narrow():
    """A width of 64: the library's cache rounds the keys' up to 64, its layers do not."""
    return builder("xLSTM", {"hidden_size": 64})()


def test_loss_and_gradients_equal_the_library_s(build):
    """In float64: the norm after a layer leaves next to nothing of its gates' gradients, and float32 rounds that away."""
    model = build().double()
    with InFloat64():
        expected = model(IDS, labels=IDS, **PLAIN).loss
        expected.backward()
        grads = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        model.zero_grad()
        loss = wrap(model)(IDS, labels=IDS).loss
        loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=0)
    for name, parameter in model.named_parameters():
        assert relative_error(parameter.grad, grads[name]) < 1e-8, name


def test_a_width_at_which_the_library_s_cache_fails_passes_the_gate(narrow):
    with torch.no_grad():
        with pytest.raises((ValueError, AssertionError), match="matC_old has wrong shape"):
            narrow(IDS[:, :1], use_cache=True)
        expected = narrow(IDS, **PLAIN).logits
        assert relative_error(wrap(narrow)(IDS).logits, expected) < 1e-5
    result = check(narrow)
    assert result.passed, [c for c in result.checks if not c.passed]


def test_nothing_is_written_into_a_state_and_gradients_flow_through_it(narrow):
    """The library copies each new state into the cache it was given."""
    model = builder("xLSTM", {})()
    cache = library_cache(model(IDS[:, :20], use_cache=True))
    held = [tensor.clone() for tensor in cache.rnn_state[0]]
    model(IDS[:, 20:], **{LibraryPath(model).keyword: cache}, use_cache=True)
    assert not any(torch.equal(a, b) for a, b in zip(cache.rnn_state[0], held))

    wrap(model)
    state = model(IDS[:, :20]).final_state
    before = state.clone()
    model(IDS[:, 20:], initial_state=state).logits.square().mean().backward()
    assert state_error(state, before) == 0
    assert model.backbone.blocks[0].mlstm_layer.fgate_preact.bias.grad.abs().sum() > 0


@torch.no_grad()
def test_a_reset_leaves_the_very_state_of_a_fresh_start(narrow):
    """The running maximum too, which starts at 0 and not at the first input gate."""
    wrap(narrow)
    reset = torch.zeros_like(IDS, dtype=torch.bool)
    reset[:, 30] = True
    for layer in narrow.backbone.blocks:
        layer.mlstm_layer.igate_preact.bias.fill_(-5)
        layer.mlstm_layer.fgate_preact.bias.fill_(8)
    found, alone = narrow(IDS, reset=reset).final_state, narrow(IDS[:, 30:]).final_state
    maxima = [named["maximum"] for named in alone.tensors.values()]
    assert all((maximum > -1).all() for maximum in maxima)
    assert state_error(found, alone) < 1e-6


@torch.no_grad()
def test_noise_stands_in_the_matrix_alone(narrow):
    state = zero_state(wrap(narrow), 1)
    for specs in state.specs.values():
        assert {name: spec.noise for name, spec in specs.items()} == {
            "recurrent": True,
            "normaliser": False,
            "maximum": False,
        }


@torch.no_grad()
def test_an_input_that_the_library_would_cut_is_refused_and_streams(narrow):
    """Past max_inference_chunksize the library runs every layer once a piece, with a cache between."""
    narrow.config.max_inference_chunksize = 64
    wrap(narrow)
    with pytest.raises(InputError, match="202 positions into pieces of 64"):
        narrow(TEXT)
    streamed = torch.cat([part.losses for part in stream(narrow, TEXT, segment=64)], 1)
    narrow.config.max_inference_chunksize = 16384
    whole = torch.cat([part.losses for part in stream(narrow, TEXT, segment=201)], 1)
    assert relative_error(streamed, whole) < 1e-5


def test_the_package_s_own_model_passes_the_gate_and_trains_through_its_state():
    """The package copies states in place, so that a gradient through one fails."""
    package = pytest.importorskip("xlstm.xlstm_large", reason="NX-AI's package xlstm is not installed")
    config = package.xLSTMLargeConfig(
        embedding_dim=64,
        num_heads=4,
        num_blocks=2,
        vocab_size=64,
        chunkwise_kernel="chunkwise--native_autograd",
        sequence_kernel="native_sequence__native",
        step_kernel="native",
        return_last_states=True,
        autocast_kernel_dtype="float32",
    )
    torch.manual_seed(0)
    model = package.xLSTMLarge(config)
    expected, state = model(TEXT[:, :128])
    with pytest.raises(RuntimeError, match="inplace"):
        (expected.sum() + model(TEXT[:, 64:128], state)[0].sum()).backward()

    wrap(model)
    first_part = model(TEXT[:, :50])
    second_part = model(TEXT[:, 50:128], initial_state=first_part.final_state)
    assert relative_error(torch.cat([first_part.predictions, second_part.predictions], 1), expected) < 1e-5
    second_part.predictions.square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    result = check(model, inputs=TEXT)
    assert result.passed, [c for c in result.checks if not c.passed]
