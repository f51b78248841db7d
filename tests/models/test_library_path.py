"""The survey of a library's own path: every check passes on a model that does right and fails on one planted fault;
the installed transformers' classes show the traps they are known for."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from lengthen.errors import InputError
from lengthen.models.library_cache import LibraryPath
from lengthen.models.library_path import CHECK_NAMES, check_library_path, compatibility_page, survey
from lengthen.models.tiny_models import TINY_MODELS, TinyModel, build_tiny_model
from lengthen.results import CheckResult
from tests.models.toy_library import failed, toy

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


def test_a_model_that_does_right_passes_every_check_that_applies() -> None:
    result = check_library_path(toy())
    assert failed(result) == set() and result.passed
    # positions only matter where there is attention
    assert {check.name for check in result.checks} == set(CHECK_NAMES) - {"positions-continue"}


def test_a_path_that_stops_is_told_with_its_error() -> None:
    result = check_library_path(toy("crashes"))
    assert failed(result) == {"runs"} and not result.passed
    assert "no carried state here" in result.checks[0].meaning


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
