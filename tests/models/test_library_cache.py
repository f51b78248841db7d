"""A library's own cache: found under the name its class uses, and every tensor in it told by what it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from lengthen.errors import InputError
from lengthen.models.library_cache import LibraryPath, fork
from lengthen.models.tiny_models import TINY_MODELS, build_tiny_model
from tests.models.toy_library import Toy, ToyConfig, ToyOutput, toy

TOKENS = torch.randint(3, 30, (2, 9), generator=torch.Generator().manual_seed(0))


def path_of(title: str) -> LibraryPath:
    return LibraryPath(build_tiny_model(next(model for model in TINY_MODELS if model.title == title)))


@torch.no_grad()
@pytest.mark.parametrize(
    ("title", "kinds"),
    [
        ("Mamba2", {"recurrent", "window"}),
        ("Jamba", {"recurrent", "window", "attention"}),
        ("Rwkv", {"recurrent", "window"}),
        ("xLSTM", {"recurrent"}),
    ],
)
def test_every_tensor_of_a_cache_is_told_by_its_kind(title: str, kinds: set[str]) -> None:
    path = path_of(title)
    _, cache = path.run(TOKENS, path.start())
    held = path.held(cache)
    assert {item.kind for item in held} == kinds
    assert {item.kind for item in path.memory(cache)} == {"recurrent"}
    assert [item.path for item in held] == [item.path for item in path.held(fork(cache))]


@torch.no_grad()
def test_a_copied_cache_is_not_what_a_call_moves_on() -> None:
    path = path_of("Mamba2")
    _, cache = path.run(TOKENS, path.start())
    copied = fork(cache)
    before = [item.tensor.clone() for item in path.held(copied)]
    path.run(TOKENS, cache)
    assert all(torch.equal(item.tensor, t) for item, t in zip(path.held(copied), before, strict=True))
    changed = [not torch.equal(item.tensor, t) for item, t in zip(path.held(cache), before, strict=True)]
    assert any(changed)


def test_what_a_class_keeps_on_its_modules_is_named_and_put_away() -> None:
    path = LibraryPath(toy("on module"))
    assert path.on_modules() == []
    path.run(TOKENS)
    assert path.on_modules() == ["state_on_module"]
    path.forget()
    assert path.on_modules() == []


class Receiving(Toy):
    """Returns no cache: it fills the one it is given."""

    def forward(self, input_ids: Tensor, cache: object = None, use_cache: bool | None = None) -> ToyOutput:
        return ToyOutput(logits=self.head(self.embed(input_ids)))


def test_a_class_that_returns_no_cache_is_given_a_new_one() -> None:
    torch.manual_seed(0)
    assert isinstance(LibraryPath(Receiving(ToyConfig())).start(), DynamicCache)
    assert LibraryPath(toy()).start() is None


class Stateless(PreTrainedModel):
    config_class = ToyConfig

    def forward(self, input_ids: Tensor) -> ToyOutput:
        return ToyOutput(logits=nn.functional.one_hot(input_ids, 32).float())


def test_a_class_that_takes_no_cache_is_refused() -> None:
    with pytest.raises(InputError, match=r"^Stateless\.forward takes no cache .*; wrap the model instead\.$"):
        LibraryPath(Stateless(ToyConfig()))


def test_a_keyword_is_taken_by_name_or_among_all_others() -> None:
    path = LibraryPath(toy())
    assert path.accepts("attention_mask") and not path.accepts("seq_idx")
    assert path.keyword == "cache" and path_of("Rwkv").keyword == "state"
