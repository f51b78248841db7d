"""Whether a library's own path carries the recurrent state: its own forward, its own cache, none of our code.

Each check answers one question of a user who streams, trains from a carried state, packs or pads rows, and names
the trap where the answer is bad.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import transformers
from transformers import PreTrainedModel

from lengthen.errors import InputError
from lengthen.models import library_checks as checks
from lengthen.models.library_cache import LibraryPath
from lengthen.models.library_checks import Finding, Subject
from lengthen.models.tiny_models import TINY_MODELS, TinyModel, build_tiny_model
from lengthen.results import Check, CheckResult

# name: the question, what it means where all is well, what it does to the user where not
_QUESTIONS: dict[str, tuple[Callable[[Subject], Finding | None], str, str]] = {
    "state-reachable": (
        checks.state_reachable,
        "The output hands the state back in its cache.",
        "The state lies on the model's modules and not in the cache: it cannot be saved, exchanged or trained from.",
    ),
    "weights-untouched": (
        checks.weights_untouched,
        "A forward leaves the weights alone.",
        "A forward rescales weights in place: what is saved after an evaluation is not what was loaded.",
    ),
    "segments": (
        checks.segments,
        "A sequence read in segments gives the logits of one run.",
        "A sequence read in segments gives other logits than one run: streaming it is wrong, silently.",
    ),
    "token-by-token": (
        checks.token_by_token,
        "A sequence read token by token gives the logits of one run.",
        "A sequence read token by token gives other logits than one run.",
    ),
    "row-independence": (
        checks.row_independence,
        "The rows of a batch do not touch one another.",
        "The rows of a batch mix when a state is carried: what a row gives depends on its neighbours.",
    ),
    "state-carried": (
        checks.state_carried,
        "A segment of several tokens starts from the carried state.",
        "A segment of several tokens starts from a zero state: the carried one is dropped without a word.",
    ),
    "positions-continue": (
        checks.positions_continue,
        "Positions continue in the next segment.",
        "Positions restart in the next segment unless position_ids are given: attention sees wrong distances.",
    ),
    "in-place-update": (
        checks.in_place_update,
        "A call leaves the tensors of the state it was given as they were.",
        "A call overwrites the state it was given: a bank or a fork that keeps that tensor is corrupted.",
    ),
    "use-cache-false": (
        checks.use_cache_false,
        "With use_cache=False a call leaves the cache it was given as it was.",
        "A call advances the cache it was given even with use_cache=False: looking ahead changes the state.",
    ),
    "gradient-through-state": (
        checks.gradient_through_state,
        "Gradients flow through the carried state as in one run.",
        "Gradients do not flow through the carried state as in one run: training across segments is wrong.",
    ),
    "train-from-state": (
        checks.train_from_state,
        "A training step can start from a carried, detached state.",
        "A training step that starts from a carried, detached state has no usable gradient.",
    ),
    "train-mode-state": (
        checks.train_mode_state,
        "In train mode a call returns its final state.",
        "In train mode no final state comes back unless use_cache=True is given: the next step starts from zero.",
    ),
    "gradient-checkpointing": (
        checks.gradient_checkpointing,
        "Gradient checkpointing keeps the carried state.",
        "Gradient checkpointing drops or changes the carried state: training from it is wrong.",
    ),
    "packed-rows": (
        checks.packed_rows,
        "Documents packed into one row do not see one another.",
        "The state leaks between documents packed into one row, though position_ids, seq_idx and cu_seq_lens say so.",
    ),
    "swallowed-keyword": (
        checks.swallowed_keyword,
        "A cache given under another class's keyword is used or refused.",
        "A cache given under another class's keyword is swallowed: the model starts from zero without a word.",
    ),
    "left-padding": (
        checks.left_padding,
        "With an attention mask, left padding does not reach the state.",
        "Left padding reaches the state in spite of the attention mask.",
    ),
    "left-padding-without-mask": (
        checks.left_padding_without_mask,
        "Left padding does not reach the state even without an attention mask.",
        "Left padding without an attention mask is read as text and reaches the state.",
    ),
    "right-padding": (
        checks.right_padding,
        "With an attention mask, a row's final state is that of its last token.",
        "Right padding changes a row's final state in spite of the attention mask: a short row hands on another state.",
    ),
    "state-dtype": (
        checks.state_dtype,
        "A model in bfloat16 keeps its recurrent state in float32.",
        "A model in bfloat16 keeps its recurrent state in bfloat16: it is rounded at every boundary.",
    ),
}

CHECK_NAMES = ("runs", *_QUESTIONS)
"""Every check, in the order of a result's list."""


def check_library_path(
    model: PreTrainedModel, *, name: str | None = None, family: str | None = None, seed: int = 0
) -> CheckResult:
    """Judges a causal language model of transformers by its own forward and its own cache.

    Args:
        model: any dtype and device; comes back in the mode it came in.
        name: what the result calls it; the class's name if not given.
        family: its kind of recurrence; looked up by class if not given.
        seed: of the random tokens.

    Returns:
        One Check for every question that applies. `value` is the largest error max|a - r| / max|r| of logits or
        state unless the check says otherwise, None where the answer is yes or no. A check that stopped with an
        exception has failed; its meaning says with which.

    Raises:
        InputError: the class takes no cache, or keeps neither a recurrent nor a window state.
    """
    kind = type(model).__name__.removesuffix("ForCausalLM")
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            found = _examine(model, seed)
    finally:
        model.train(training)
    return CheckResult(
        model=name or kind,
        family=family or next((tiny.family for tiny in TINY_MODELS if tiny.name == kind), "unknown"),
        passed=all(check.passed for check in found),
        checks=found,
    )


def survey(models: Sequence[TinyModel] = TINY_MODELS, *, seed: int = 0) -> list[CheckResult]:
    """check_library_path on tiny random models; a class that the installed transformers lacks is left out."""
    return [
        check_library_path(build_tiny_model(tiny, seed), name=tiny.title, family=tiny.family, seed=seed)
        for tiny in models
        if tiny.installed
    ]


def compatibility_page(results: Sequence[CheckResult]) -> str:
    """The survey as a Markdown page: one row a model, one column a check, then what each failure does to the user."""
    present = [name for name in CHECK_NAMES if any(check.name == name for r in results for check in r.checks)]
    lines = [
        f"# What transformers {transformers.__version__} does with a recurrent state",
        "",
        "Tiny random models of every recurrent and hybrid class, on the CPU, each run by its own forward through its",
        "own cache, without lengthen. Written by `lengthen check --as-is`; a wrapped model is judged by",
        "`lengthen check`.",
        "",
        "A number is an error relative to the largest reference value and marks a failure; `ok` a pass; `no` a",
        "failure without a number; `error` an exception; empty: the question does not apply.",
        "",
        "| model | family | " + " | ".join(present) + " |",
        "|---|---|" + "---|" * len(present),
    ]
    for result in results:
        found = {check.name: check for check in result.checks}
        cells = [_cell(found.get(name)) for name in present]
        lines.append(f"| {result.model} | {result.family} | " + " | ".join(cells) + " |")
    lines += ["", "## What each failure does", ""]
    lines += [f"- **{name}**: {_QUESTIONS[name][2]}" for name in present if name in _QUESTIONS]
    if "runs" in present:
        lines.append(f"- **runs**: {_CRASH}")
    return "\n".join(lines) + "\n"


_CRASH = "The class crashes as soon as it is asked for a cache."


def _examine(model: PreTrainedModel, seed: int) -> list[Check]:
    path = LibraryPath(model)
    subject = Subject(path, seed)
    try:
        cache = path.run(subject.short, path.start())[1]
        path.run(subject.short[:, :1], cache)
    except Exception as error:  # whatever a library raises is the finding
        return [Check("runs", False, None, None, f"{_CRASH.removesuffix('.')} ({_stopped(error)}).")]
    if not path.memory(cache) and not path.on_modules():
        raise InputError(
            f"{type(model).__name__} keeps neither a recurrent nor a window state, so there is nothing to check; "
            "give a recurrent or hybrid model."
        )
    found = [Check("runs", True, None, None, "The class runs through its own cache.")]
    for name, (question, well, trap) in _QUESTIONS.items():
        try:
            finding = question(subject)
        except Exception as error:
            finding = Finding(False, detail=_stopped(error))
        if finding is not None:
            detail = f" ({finding.detail})" if finding.detail else ""
            sentence = (well if finding.passed else trap).removesuffix(".") + detail + "."
            found.append(Check(name, finding.passed, finding.value, finding.tolerance, sentence))
    return found


def _stopped(error: Exception) -> str:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
    return f"it stopped with {type(error).__name__}: {reason.rstrip('.')}"


def _cell(check: Check | None) -> str:
    if check is None:
        return ""
    if check.passed:
        return "ok"
    if "stopped with" in check.meaning:
        return "error"
    return "no" if check.value is None else f"{check.value:.2g}"
