"""What a wrapped model of any library class must do, as tests; a family's test file imports them and says which models.

The file names its models in CLASSES: class -> title of the shape -> options changed. A test takes `build` for every shape
of every class, or `build_first` for one shape of each (see conftest.py): build(seed=0, **options) -> the library's model,
small, random, in eval mode. What holds for Mamba may differ in another family, whose file then redefines the fixtures `library_heeds_masks`, `library_states`, `adapted_layers` and
`recurrence_parameter`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lengthen import (
    TBPTT,
    FittedNoise,
    Mixture,
    RandomNoise,
    StatePassing,
    Zero,
    check,
    post_train,
    stream,
    wrap,
    zero_state,
)
from lengthen.models import is_wrapped
from lengthen.models.agreement import relative_error, state_error
from lengthen.models.attention import SequenceState
from lengthen.models.tiny_models import TINY_MODELS, build_tiny_model
from lengthen.models.tiny_models_fla import FLA_TINY_MODELS
from tests.conftest import checkpoint_activations, library_cache

__all__ = [
    "adapted_layers",
    "library_heeds_masks",
    "library_states",
    "recurrence_parameter",
    "test_a_mask_with_holes_is_the_dense_text",
    "test_checkpointed_training_gives_the_same_gradients",
    "test_generate_gives_the_same_tokens",
    "test_in_float64_logits_and_states_equal_the_library_s",
    "test_logits_equal_the_library_s",
    "test_lora_changes_the_output_and_gets_gradients",
    "test_loss_and_gradients_equal_the_library_s",
    "test_passes_the_parity_gate",
    "test_post_training_runs_with_every_intervention",
    "test_save_pretrained_loads_in_the_plain_library",
    "test_statistics_are_told_per_layer_and_head",
    "test_streaming_equals_one_run",
]

IDS = torch.randint(3, 64, (3, 75), generator=torch.Generator().manual_seed(0))
TEXT = torch.randint(3, 64, (2, 202), generator=torch.Generator().manual_seed(1))
MASK = torch.ones_like(IDS)
MASK[0, :9], MASK[2, -11:] = 0, 0
PLAIN = {"use_cache": False}

Build = Callable[..., Any]


def builder(name: str, options: dict[str, Any]) -> Build:
    """build() for a class among lengthen's tiny models, with these options changed; fla's Mamba is fla.models.Mamba."""
    every = [tiny for tiny in TINY_MODELS + FLA_TINY_MODELS if not tiny.variant]
    tiny = next(tiny for tiny in every if name in (tiny.name, f"{tiny.library}.{tiny.name}"))

    def build(seed: int = 0, **more: Any) -> Any:
        return build_tiny_model(dataclasses.replace(tiny, options=tiny.options | options | more), seed)

    return build


@pytest.fixture
def library_heeds_masks() -> bool:
    """Whether the library's own forward keeps padding out of the state, so that it can be compared with."""
    return True


@torch.no_grad()
def test_logits_equal_the_library_s(build: Build, library_heeds_masks: bool) -> None:
    model, real = build(), MASK.bool()
    expected, padded = model(IDS, **PLAIN).logits, model(IDS, attention_mask=MASK, **PLAIN).logits[real]
    if not library_heeds_masks:
        alone = torch.cat([model(ids[mask][None], **PLAIN).logits[0] for ids, mask in zip(IDS, real)])
        assert relative_error(padded, alone) > 1e-3
        padded = alone
    wrap(model)
    assert relative_error(model(IDS).logits, expected) < 1e-5
    assert relative_error(model(IDS, attention_mask=MASK).logits[real], padded) < 1e-5


class InFloat64(TorchFunctionMode):
    """Whatever asks for float32 gets float64."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        return function(*map(_wide, args), **{name: _wide(value) for name, value in (kwargs or {}).items()})


def _wide(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


@pytest.fixture
def library_states() -> Callable[[Any, Any], list[Tensor]]:
    """From the library's model and its output to the layers' recurrent states in lengthen's layout."""

    def states(model: Any, output: Any) -> list[Tensor]:
        found = [
            layer.recurrent_states[0] for layer in library_cache(output).layers if hasattr(layer, "recurrent_states")
        ]
        return [state.mT if state.dim() == 4 else state for state in found]  # the library keeps [value, key]

    return states


@torch.no_grad()
def test_in_float64_logits_and_states_equal_the_library_s(
    build: Build, library_states: Callable[[Any, Any], list[Tensor]]
) -> None:
    """The library computes much in float32; made to compute in float64, it must agree further."""
    model = build().double()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the grouped products know no float64
    with InFloat64():
        expected = model(IDS, use_cache=True)
        output = wrap(model)(IDS)
    assert relative_error(output.logits, expected.logits) < 1e-8
    found = [named["recurrent"] for named in output.final_state.tensors.values() if "recurrent" in named]
    for state, library_state in zip(found, library_states(model, expected), strict=True):
        assert relative_error(state, library_state) < 1e-12


def test_passes_the_parity_gate(build: Build) -> None:
    result = check(build())
    assert result.passed, [c for c in result.checks if not c.passed]
    wanted = {
        "train-mode",
        "gradient-checkpointing",
        "left-padding",
        "right-padding",
        "packing",
        "gradient-through-state",
    }
    assert wanted <= {c.name for c in result.checks}


def test_loss_and_gradients_equal_the_library_s(build: Build) -> None:
    model = build()
    labels = IDS.masked_fill(MASK == 0, -100)
    expected = model(IDS, labels=labels, **PLAIN)
    expected.loss.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    items = model(IDS, labels=labels, num_items_in_batch=torch.tensor(1000), **PLAIN).loss
    output = wrap(model)(IDS, labels=labels)
    output.loss.backward()
    assert output.logits is None
    torch.testing.assert_close(output.loss, expected.loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(model(IDS, labels=labels, num_items_in_batch=torch.tensor(1000)).loss, items)
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert set(found) == set(grads)
    for name, grad in found.items():
        assert relative_error(grad, grads[name]) < 1e-4, name


def test_generate_gives_the_same_tokens(build: Build, library_heeds_masks: bool) -> None:
    model = build()
    mask = MASK if library_heeds_masks else torch.ones_like(MASK)
    prompts = {"input_ids": IDS[:2, :30], "attention_mask": mask[:2, :30]}
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    expected = {cached: model.generate(**prompts, **options, use_cache=cached) for cached in (True, False)}
    wrap(model)
    for cached, tokens in expected.items():
        assert torch.equal(model.generate(**prompts, **options, use_cache=cached), tokens), cached


@torch.no_grad()
def test_streaming_equals_one_run(build: Build) -> None:
    """Segments of 1, 7, 64 and 129 tokens, and a stream that goes on where another stopped."""
    model = wrap(build())
    logits = model(TEXT[:, :-1]).logits
    expected = torch.nn.functional.cross_entropy(logits.transpose(1, 2), TEXT[:, 1:], reduction="none")
    parts = list(stream(model, TEXT, cuts=[1, 8, 72]))
    assert [p.end for p in parts] == [1, 8, 72, 201]
    assert relative_error(torch.cat([p.losses for p in parts], 1), expected) < 1e-5
    again = stream(model, TEXT[:, 8:], segment=64, initial_state=parts[1].final_state, start=8)
    assert relative_error(torch.cat([p.losses for p in again], 1), expected[:, 8:]) < 1e-5


@torch.no_grad()
def test_statistics_are_told_per_layer_and_head(build: Build) -> None:
    state = wrap(build())(IDS).final_state
    found = state.statistics()
    assert set(found) == {layer for layer, named in state.tensors.items() if "recurrent" in named} and len(found) >= 2
    for layer, named in found.items():
        spec, tensor = state.specs[layer]["recurrent"], state.tensors[layer]["recurrent"]
        heads = 1 if spec.head_axis is None else tensor.shape[spec.head_axis]
        assert named["recurrent"]["std"].shape == (3, heads) and (named["recurrent"]["std"] > 0).all()


@torch.no_grad()
def test_a_mask_with_holes_is_the_dense_text(build: Build) -> None:
    model = wrap(build())
    mask = torch.ones_like(IDS)
    mask[:, 20:33] = 0
    holes, dense = model(IDS, attention_mask=mask), model(torch.cat([IDS[:, :20], IDS[:, 33:]], 1))
    assert relative_error(holes.logits[mask.bool()].view_as(dense.logits), dense.logits) < 1e-5
    assert state_error(holes.final_state, dense.final_state) < 1e-5


def test_checkpointed_training_gives_the_same_gradients(build: Build) -> None:
    """Two segments, the second from the first's state: in training attention sees each segment alone."""

    def gradients(checkpointing: bool) -> torch.Tensor:
        model = wrap(build()).train()
        if checkpointing:
            checkpoint_activations(model)
        first = model(input_ids=IDS[:, :40], labels=IDS[:, :40])
        assert not isinstance(first.final_state, SequenceState)
        second = model(input_ids=IDS[:, 40:], labels=IDS[:, 40:], initial_state=first.final_state)
        (first.loss + second.loss).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    assert relative_error(gradients(True), gradients(False)) < 1e-5


def test_save_pretrained_loads_in_the_plain_library(build: Build, tmp_path: Any) -> None:
    model = wrap(build())
    model.save_pretrained(tmp_path)
    plain, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not is_wrapped(plain) and not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        assert relative_error(plain(IDS, **PLAIN).logits, model(IDS).logits) < 1e-5


@pytest.fixture
def adapted_layers() -> list[str]:
    """Names of linear layers in every model, for LoRA."""
    return ["in_proj"]


def test_lora_changes_the_output_and_gets_gradients(build: Build, adapted_layers: list[str]) -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=adapted_layers, init_lora_weights=False)
    torch.manual_seed(0)  # the adapters' own weights are drawn
    adapted = wrap(get_peft_model(build(), config))
    assert is_wrapped(adapted)
    output = adapted(input_ids=IDS, labels=IDS, initial_state=zero_state(adapted, 3))
    output.loss.backward()
    trained = {n for n, p in adapted.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert trained and all("lora" in n for n in trained)
    assert (adapted(input_ids=IDS).logits - wrap(build())(input_ids=IDS).logits).abs().max() > 1e-4


@pytest.fixture
def recurrence_parameter() -> str:
    """How the name of a parameter of the recurrence ends."""
    return "A_log"


def test_post_training_runs_with_every_intervention(
    build_first: Build, recurrence_parameter: str, plays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gc.collect", lambda *_: 0)  # Accelerate calls it at every start; it outlasts the three steps
    for intervention in (
        Zero(),
        RandomNoise(0.1),
        FittedNoise(),
        StatePassing(),
        TBPTT(),
        Mixture([(StatePassing(zero_fraction=0), 0.5), (Zero(), 0.5)]),
    ):
        model = build_first(vocab_size=256)
        before = {n: p.clone() for n, p in model.named_parameters()}
        record = post_train(model, plays[0], train_context=16, steps=3, rows=4, intervention=intervention)
        assert len(record.losses) == 3 and record.losses == pytest.approx(record.losses)
        assert any(
            not torch.equal(p, before[n]) for n, p in model.named_parameters() if n.endswith(recurrence_parameter)
        )
