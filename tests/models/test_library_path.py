"""The survey of a library's own path: every check passes on a model that does right and fails on one planted fault;
the installed transformers' classes show the traps they are known for."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import ModelOutput

from lengthen.errors import InputError
from lengthen.models.library_cache import LibraryPath
from lengthen.models.library_path import CHECK_NAMES, check_library_path, compatibility_page, survey
from lengthen.models.tiny_models import TINY_MODELS, TinyModel, build_tiny_model
from lengthen.results import CheckResult

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
release_5_25 = pytest.mark.skipif(
    not transformers.__version__.startswith("5.25."), reason="states what transformers 5.25 does"
)

# Their windows are short convolutions inside attention layers: no layer of theirs has a recurrence.
NOT_RECURRENT = {"Inkling", "Inkling2", "Inkling2Loop", "Zaya"}


@pytest.fixture(scope="module")
def results() -> dict[str, CheckResult]:
    start = time.process_time()
    found = {result.model: result for result in survey()}
    assert time.process_time() - start < 60
    return found


def tiny(title: str) -> TinyModel:
    return next(model for model in TINY_MODELS if model.title == title)


def failed(result: CheckResult) -> set[str]:
    return {check.name for check in result.checks if not check.passed}


# A model that does everything right, and one fault at a time ---------------------------------------------------------


class ToyConfig(PreTrainedConfig):
    model_type = "toy"
    fault: str = ""
    vocab_size: int = 32
    hidden_size: int = 8
    pad_token_id: int | None = 0


@dataclass
class ToyOutput(ModelOutput):
    logits: Tensor | None = None
    cache: Any = None


class Toy(PreTrainedModel):
    """h_t = 0.9 h_{t-1} + x_t over embeddings, with every courtesy; `fault` takes one of them away."""

    config_class = ToyConfig
    supports_gradient_checkpointing = True

    def __init__(self, config: ToyConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size)
        self.gradient_checkpointing = False
        self.state_on_module, self.doubled = None, False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: dict[str, Tensor] | None = None,
        use_cache: bool | None = None,
    ) -> ToyOutput:
        fault = self.config.fault
        x = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        real = torch.ones(x.shape[:2], dtype=torch.bool) if input_ids is None else input_ids != self.config.pad_token_id
        if fault == "reads pads":
            real = torch.ones_like(real)
        if attention_mask is not None:
            real = attention_mask.bool() if fault != "ignores mask" else torch.ones_like(real)
        restart = torch.zeros_like(real) if position_ids is None or fault == "leaks" else position_ids == 0
        restart = restart.expand_as(real)
        old = None if cache is None else cache.get("recurrent_state", self.state_on_module)
        if fault == "stale" and cache is None:
            old = self.state_on_module
        if fault == "restarts":
            old = None if x.shape[1] > 1 else old
        if fault == "detaches" and old is not None:
            old = old.detach()
        checkpointed = self.gradient_checkpointing and self.training
        if fault == "checkpoint drops" and checkpointed:
            old = None
        if fault == "crashes" and old is not None:
            raise ValueError("no carried state here")
        h = x.new_zeros(x.shape[0], x.shape[2], dtype=torch.float32) if old is None else old
        keep = real[..., None]
        start = (h, x, keep, restart)
        states = checkpoint(_scan, *start, use_reentrant=False) if checkpointed else _scan(*start)
        if fault == "wrong steps" and x.shape[1] == 1 and old is not None:
            states = states + 0.1
        if fault == "mixes rows" and old is not None:
            states = states.roll(1, dims=0)
        if fault == "rescales" and self.doubled == (not self.training):
            self.doubled = self.training
            with torch.no_grad():
                self.head.weight.mul_(2.0 if self.doubled else 0.5)
        last = states[:, -1]
        if fault == "bfloat16 state":
            last = last.to(self.head.weight.dtype)
        asked = use_cache if use_cache is not None else not (fault == "silent in training" and self.training)
        if cache is not None and fault == "in place":
            with torch.no_grad():
                cache["recurrent_state"].copy_(last)
            last = cache["recurrent_state"]
        if cache is not None and fault == "advances":
            cache["recurrent_state"] = last.detach()
        if fault in ("on module", "stale"):
            self.state_on_module = last.detach()
        logits = self.head(states.to(self.head.weight.dtype) * (0.5 if self.doubled else 1.0))
        if fault == "no gradient" and old is not None:
            logits = logits.detach()
        held = {"calls": 1} if fault == "on module" else {"recurrent_state": last}
        return ToyOutput(logits=logits, cache=held if asked else None)


def _scan(h: Tensor, x: Tensor, keep: Tensor, restart: Tensor) -> Tensor:
    states = []
    for t in range(x.shape[1]):
        h = torch.where(restart[:, t, None], 0.0, h)
        h = torch.where(keep[:, t], 0.9 * h + x[:, t].float(), h)
        states.append(h)
    return torch.stack(states, dim=1)


class SwallowingToy(Toy):
    """Takes any keyword, and uses those it knows."""

    def forward(self, input_ids: Tensor | None = None, cache: Any = None, **others: Any) -> ToyOutput:
        known = {"inputs_embeds", "attention_mask", "position_ids", "use_cache"}
        return super().forward(input_ids, cache=cache, **{name: others[name] for name in known & others.keys()})


def toy(fault: str = "", kind: type[Toy] = Toy) -> Toy:
    torch.manual_seed(0)
    return kind(ToyConfig(fault=fault)).eval()


def test_a_model_that_does_right_passes_every_check_that_applies() -> None:
    result = check_library_path(toy())
    assert failed(result) == set() and result.passed
    # positions only matter where there is attention
    assert {check.name for check in result.checks} == set(CHECK_NAMES) - {"positions-continue"}


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("crashes", {"runs"}),
        ("on module", {"state-reachable", "gradient-through-state"}),
        ("stale", {"state-reachable", "fresh-start"}),
        ("rescales", {"weights-untouched"}),
        ("restarts", {"segments", "state-carried", "gradient-through-state"}),
        ("wrong steps", {"token-by-token"}),
        ("mixes rows", {"row-independence"}),
        ("in place", {"in-place-update", "use-cache-false", "gradient-checkpointing"}),
        ("advances", {"use-cache-false"}),
        ("detaches", {"gradient-through-state"}),
        ("no gradient", {"gradient-through-state", "train-from-state"}),
        ("silent in training", {"train-mode-state"}),
        ("checkpoint drops", {"gradient-checkpointing"}),
        ("leaks", {"packed-rows"}),
        ("ignores mask", {"left-padding", "right-padding"}),
        ("reads pads", {"left-padding-without-mask"}),
        ("bfloat16 state", {"state-dtype"}),
    ],
)
def test_each_fault_fails_its_checks(fault: str, expected: set[str]) -> None:
    result = check_library_path(toy(fault))
    assert failed(result) == expected and not result.passed


def test_a_swallowed_keyword_is_found() -> None:
    result = check_library_path(toy(kind=SwallowingToy))
    assert failed(result) == {"swallowed-keyword"}
    assert "cache_params, past_key_values, state" in next(c.meaning for c in result.checks if not c.passed)


def test_what_cannot_be_judged_is_refused() -> None:
    llama = LlamaForCausalLM(
        LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    )
    with pytest.raises(InputError, match="neither a recurrent nor a window state"):
        check_library_path(llama)
    with pytest.raises(InputError, match="Linear is not a model of transformers"):
        check_library_path(nn.Linear(2, 2))
    with pytest.raises(InputError, match="has no NoSuchModelForCausalLM"):
        build_tiny_model(TinyModel("NoSuchModel", "none", "NoSuchConfig"))


def test_the_model_comes_back_as_it_was() -> None:
    model = build_tiny_model(tiny("Mamba2")).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_library_path(model)
    assert model.training and not model.is_activation_checkpointing
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# The installed transformers ------------------------------------------------------------------------------------------


def test_every_recurrent_class_of_the_installed_library_is_listed() -> None:
    """A class counts as recurrent where its source keeps a recurrent or convolution state."""
    models = Path(transformers.__file__).parent / "models"
    found = set()
    for source in models.glob("*/modeling_*.py"):
        text = source.read_text(encoding="utf-8")
        if re.search(
            r"update_recurrent_state|update_conv_state|linear_cache|rnn_state|recurrent_states|rwkv_linear", text
        ):
            found |= set(re.findall(r"^class (\w+)ForCausalLM", text, flags=re.MULTILINE))
    mapped = {name.removesuffix("ForCausalLM") for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()}
    assert found & mapped - NOT_RECURRENT == {model.name for model in TINY_MODELS if model.installed}


def test_a_tiny_model_remembers() -> None:
    """Another sequence's state moves the logits of the next token by more than 1 %: a lost state cannot hide."""
    for model in TINY_MODELS:
        if "no attention" in model.variant or "hidden size" in model.variant or model.name == "RecurrentGemma":
            continue  # they crash, or keep no state in the cache
        path = LibraryPath(build_tiny_model(model))
        tokens = torch.randint(3, 64, (2, 24), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            own, donor, other = (path.run(row[None])[1] for row in (tokens[0], tokens[0], tokens[1]))
            for target, source in zip(path.memory(donor), path.memory(other), strict=True):
                target.tensor.copy_(source.tensor)
            right, changed = (path.run(tokens[:1, :1], cache)[0] for cache in (own, donor))
        assert (right - changed).abs().max() > 1e-2 * right.abs().max(), model.title


def test_tiny_models_are_the_same_for_the_same_seed() -> None:
    first, again, other = (build_tiny_model(tiny("Jamba"), seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


@release_5_25
@pytest.mark.parametrize(
    ("check", "expected"),
    [
        ("runs", {"Bamba (no attention layer)", "Qwen3Next (no attention layer)", "xLSTM (hidden size 64)"}),
        ("state-reachable", {"RecurrentGemma"}),
        ("weights-untouched", {"Rwkv"}),
        ("fresh-start", {"RecurrentGemma"}),
        ("state-carried", {"Mamba", "FalconMamba", "Jamba", "Zamba"}),
        (
            "segments",
            {
                "Mamba",
                "FalconMamba",
                "Jamba",
                "Zamba",
                "Bamba",
                "MiniMax (lightning layer first)",
                "RecurrentGemma",
            },
        ),
        ("token-by-token", {"Bamba", "MiniMax (lightning layer first)", "RecurrentGemma"}),
        ("positions-continue", {"Bamba", "MiniMax (lightning layer first)", "RecurrentGemma"}),
        ("row-independence", {"Rwkv"}),
        ("train-mode-state", {"Mamba", "FalconMamba", "Rwkv"}),
        (
            "train-from-state",
            {
                "Rwkv",
                "BailingHybrid",
                "Qwen3Next",
                "Qwen3_5",
                "Qwen3_5Moe",
                "Qwen4Exp",
                "OlmoHybrid",
                "KimiLinear",
                "LaraMini",
            },
        ),
        ("left-padding", {"Rwkv", "RecurrentGemma", "xLSTM"}),
        ("state-dtype", {"MiniMax", "MiniMax (lightning layer first)", "xLSTM"}),
    ],
)
def test_who_has_which_trap(results: dict[str, CheckResult], check: str, expected: set[str]) -> None:
    assert {name for name, result in results.items() if check in failed(result)} == expected


@release_5_25
@pytest.mark.parametrize(
    ("check", "spared"),
    [
        ("in-place-update", {"MiniMax", "MiniMax (lightning layer first)"}),
        ("use-cache-false", set()),
        ("gradient-checkpointing", {"Rwkv"}),
        ("packed-rows", set()),
        ("swallowed-keyword", set()),
        ("left-padding-without-mask", set()),
        ("right-padding", set()),
    ],
)
def test_traps_that_nearly_all_have(results: dict[str, CheckResult], check: str, spared: set[str]) -> None:
    applies = {name for name, result in results.items() if any(item.name == check for item in result.checks)}
    assert {name for name in applies if check not in failed(results[name])} == spared
    assert len(applies) > 20


@release_5_25
def test_mamba_ignores_a_carried_state_of_any_size_and_mamba2_does_not() -> None:
    """Independent of the check: the carried state times a million, in a segment of two tokens."""
    tokens = torch.randint(3, 64, (1, 12), generator=torch.Generator().manual_seed(2))
    changes = {}
    for title in ("Mamba", "FalconMamba", "Jamba", "Zamba", "Mamba2"):
        path = LibraryPath(build_tiny_model(tiny(title)))
        with torch.no_grad():
            own, scaled = (path.run(tokens[:, :10])[1] for _ in range(2))
            for held in path.memory(scaled):
                held.tensor.mul_(1e6)
            changes[title] = float((path.run(tokens[:, 10:], own)[0] - path.run(tokens[:, 10:], scaled)[0]).abs().max())
    assert changes.pop("Mamba2") > 0.1
    assert set(changes.values()) == {0.0}


@release_5_25
def test_what_the_sentences_name(results: dict[str, CheckResult]) -> None:
    def meaning(model: str, check: str) -> str:
        return next(item.meaning for item in results[model].checks if item.name == check)

    assert "it equals the run from zero exactly" in meaning("Mamba2", "gradient-checkpointing")
    assert "swallowed: past_key_values, state" in meaning("Mamba2", "swallowed-keyword")
    assert "leaks with position_ids; refused with seq_idx, cu_seq_lens" in meaning("Qwen3Next", "packed-rows")
    assert "it lies in conv1d_state, recurrent_states" in meaning("RecurrentGemma", "state-reachable")
    assert "logits of shape (2, 15, 64) came back instead of (2, 13, 64)" in meaning("Rwkv", "row-independence")
    assert "get_mask_sizes" in meaning("Bamba (no attention layer)", "runs")


def test_results_have_a_json_form(results: dict[str, CheckResult]) -> None:
    document = results["Rwkv"].to_json()
    rows = next(check for check in document["checks"] if check["name"] == "row-independence")
    assert rows["passed"] is False and rows["value"] is None  # infinite: JSON has none
    assert set(document) == {"model", "family", "passed", "checks"}
    assert all(set(check) == {"name", "passed", "value", "tolerance", "meaning"} for check in document["checks"])


@release_5_25
def test_the_page_in_the_documentation_is_what_the_survey_says(results: dict[str, CheckResult]) -> None:
    """The same models, checks and verdicts; the last digit of an error may differ between machines."""

    def verdicts(page: str) -> list[list[str]]:
        rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
        return [[re.sub(r"^ (inf|[\d.e+-]+) $", " number ", cell) for cell in row] for row in rows]

    assert verdicts(PAGE.read_text(encoding="utf-8")) == verdicts(compatibility_page(list(results.values())))
