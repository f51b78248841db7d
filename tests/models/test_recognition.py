"""A model with a recurrent layer that no family runs is refused by name, never wrapped in part."""

import re

import pytest
import torch
from torch import nn

from lengthen import wrap
from lengthen.errors import InputError
from lengthen.models import is_wrapped
from lengthen.models.binding import wrapped_layers
from lengthen.models.library_cache import LibraryPath
from lengthen.models.recognition import recurrent_layers
from lengthen.models.tiny_models import TINY_MODELS, build_tiny_model

TOKENS = torch.randint(3, 60, (1, 20), generator=torch.Generator().manual_seed(0))
INSTALLED = [tiny for tiny in TINY_MODELS if tiny.installed]


def layers_with_state(model):
    """How many layers the library's own cache holds something other than keys and values of;
    None where it will not say (a crash, or a state that lies on the modules)."""
    try:
        path = LibraryPath(model)
        with torch.no_grad():
            held = path.held(path.run(TOKENS, path.start())[1])
    except Exception:
        return None
    if path.keyword == "state":
        return None  # one tensor for all layers
    return len({re.search(r"\d+", item.path).group() for item in held if item.kind != "attention"}) or None


@pytest.mark.parametrize("tiny", INSTALLED, ids=[tiny.title for tiny in INSTALLED])
def test_every_class_of_the_library_is_wrapped_whole_or_refused_by_name(tiny):
    model = build_tiny_model(tiny)
    expected = layers_with_state(model)
    try:
        wrap(model)
    except InputError as error:
        name = re.search(r"the (?:recurrent layer|short convolution) (\S+)", str(error))
        assert name and model.get_submodule(name[1]) and not is_wrapped(model)
    else:
        found = {re.search(r"\d+", binding.name).group() for binding, _ in wrapped_layers(model)}
        assert expected in (None, len(found))


class Strange(nn.Module):
    """Takes a cache, as library layers do."""

    def forward(self, hidden_states, cache=None, attention_mask=None):
        return hidden_states


class Decaying(nn.Module):
    """Takes none, but has what only recurrences have."""

    def __init__(self):
        super().__init__()
        self.A_log = nn.Parameter(torch.zeros(4))

    def forward(self, hidden_states):
        return hidden_states


class StrangeAttention(Decaying):
    """Called attention by its library."""


@pytest.mark.parametrize(
    "layer, reason",
    [
        (Strange(), "its forward takes cache"),
        (Decaying(), "it has the parameter A_log"),
        (StrangeAttention(), "it has the parameter A_log"),
        (nn.GRUCell(32, 32), "a cell, whose state its caller keeps"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_one_unknown_layer_among_known_ones_is_named(layer, reason):
    model = build_tiny_model(next(tiny for tiny in INSTALLED if tiny.name == "Bamba"))
    known = [name for name, _, _ in recurrent_layers(model)]
    model.set_submodule(known[1], layer)
    with pytest.raises(InputError) as caught:
        wrap(model)
    message = str(caught.value)
    assert f"{known[1]} ({type(layer).__name__})" in message and reason in message and "docs/new-family.md" in message
    assert not is_wrapped(model) and not list(wrapped_layers(model))


class Discarding(nn.Module):
    """As hand-made Mamba-2 layers are found: a cache is heeded for one token, and put aside for more."""

    def forward(self, x, cache=None):
        start = cache if cache is not None and x.shape[1] == 1 else torch.zeros_like(x[:, 0])
        y = start[:, None] + x.cumsum(1)
        return y, y[:, -1]


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.known = Discarding(), nn.GRU(5, 5, batch_first=True)

    def forward(self, x, cache=None):
        return self.known(self.layer(x, cache)[0])[0]


def test_a_layer_that_discards_its_cache_for_several_tokens_is_refused():
    x, model = torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(0)), Around()
    _, cache = model.layer(x[:, :4])
    dropped, alone = model(x[:, 4:], cache), model(x[:, 4:])
    assert torch.equal(dropped, alone) and not torch.equal(model(x[:, 4:5], cache), alone[:, :1])
    with pytest.raises(InputError, match=r"the recurrent layer layer \(Discarding\).*its forward takes cache"):
        wrap(model)


def test_a_model_without_recurrence_is_refused():
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32)
    )
    with pytest.raises(InputError, match="no recurrent layer"):
        wrap(model)


@pytest.mark.parametrize("name", ["Lfm2", "Lfm2Moe", "Lfm3"])
def test_a_model_of_short_convolutions_alone_is_told_that_it_has_no_recurrent_state(name):
    tiny = next(tiny for tiny in TINY_MODELS if tiny.name == name)
    if not tiny.installed:
        pytest.skip(f"the installed transformers has no {name}")
    with pytest.raises(InputError, match=rf"{name}ForCausalLM has no recurrent state: the short convolution model"):
        wrap(build_tiny_model(tiny))
