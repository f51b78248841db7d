"""Whether a library's own path carries the recurrent state: its own forward, its own cache, none of our code.

Each check answers one question of a user who streams, trains from a carried state, packs or pads rows, and names
the trap where the answer is bad.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from lengthen.errors import InputError
from lengthen.models import library_carry, library_rows, library_training
from lengthen.models.library_cache import LibraryPath
from lengthen.models.library_subject import Finding, Subject
from lengthen.models.tiny_models import TINY_MODELS, TinyModel, build_tiny_model
from lengthen.models.wrapping import is_wrapped
from lengthen.results import Check, CheckResult

# name: the question, what it means where all is well, what it does to the user where not
_QUESTIONS: dict[str, tuple[Callable[[Subject], Finding | None], str, str]] = {
    "state-reachable": (
        library_carry.state_reachable,
        "The output hands the state back in its cache.",
        "The state lies on the model's modules and not in the cache: it cannot be saved, exchanged or trained from.",
    ),
    "weights-untouched": (
        library_carry.weights_untouched,
        "A forward leaves the weights alone.",
        "A forward rescales weights in place: what is saved after an evaluation is not what was loaded.",
    ),
    "fresh-start": (
        library_carry.fresh_start,
        "A new sequence sees nothing of the one before.",
        "A new sequence sees what the one before left on the model's modules: its result depends on what ran earlier.",
    ),
    "segments": (
        library_carry.segments,
        "A sequence read in segments gives the logits of one run.",
        "A sequence read in segments gives other logits than one run: streaming it is wrong, silently.",
    ),
    "token-by-token": (
        library_carry.token_by_token,
        "A sequence read token by token gives the logits of one run.",
        "A sequence read token by token gives other logits than one run.",
    ),
    "row-independence": (
        library_rows.row_independence,
        "The rows of a batch do not touch one another.",
        "The rows of a batch mix when a state is carried: what a row gives depends on its neighbours.",
    ),
    "state-carried": (
        library_carry.state_carried,
        "A segment of several tokens starts from the carried state.",
        "A segment of several tokens starts from a zero state: the carried one is dropped without a word.",
    ),
    "positions-continue": (
        library_carry.positions_continue,
        "Positions continue in the next segment.",
        "Positions restart in the next segment unless position_ids are given: attention sees wrong distances.",
    ),
    "in-place-update": (
        library_carry.in_place_update,
        "A call leaves the tensors of the state it was given as they were.",
        "A call overwrites the state it was given: a bank or a fork that keeps that tensor is corrupted.",
    ),
    "use-cache-false": (
        library_carry.use_cache_false,
        "With use_cache=False a call leaves the cache it was given as it was.",
        "A call advances the cache it was given even with use_cache=False: looking ahead changes the state.",
    ),
    "gradient-through-state": (
        library_training.gradient_through_state,
        "Gradients flow through the carried state as in one run.",
        "Gradients do not flow through the carried state as in one run: training across segments is wrong.",
    ),
    "train-from-state": (
        library_training.train_from_state,
        "A training step can start from a carried, detached state.",
        "A training step that starts from a carried, detached state has no usable gradient.",
    ),
    "train-mode-state": (
        library_training.train_mode_state,
        "In train mode a call returns its final state.",
        "In train mode no final state comes back unless use_cache=True is given: the next step starts from zero.",
    ),
    "gradient-checkpointing": (
        library_training.gradient_checkpointing,
        "Gradient checkpointing keeps the carried state.",
        "Gradient checkpointing drops or changes the carried state: training from it is wrong.",
    ),
    "packed-rows": (
        library_rows.packed_rows,
        "Documents packed into one row do not see one another.",
        "The state leaks between documents packed into one row, though position_ids, seq_idx and cu_seq_lens say so.",
    ),
    "swallowed-keyword": (
        library_carry.swallowed_keyword,
        "A cache given under another class's keyword is used or refused.",
        "A cache given under another class's keyword is swallowed: the model starts from zero without a word.",
    ),
    "left-padding": (
        library_rows.left_padding,
        "With an attention mask, left padding does not reach the state.",
        "Left padding reaches the state in spite of the attention mask.",
    ),
    "left-padding-without-mask": (
        library_rows.left_padding_without_mask,
        "Left padding does not reach the state even without an attention mask.",
        "Left padding without an attention mask is read as text and reaches the state.",
    ),
    "right-padding": (
        library_rows.right_padding,
        "With an attention mask, a row's final state is that of its last token.",
        "Right padding changes a row's final state in spite of the attention mask: a short row hands on another state.",
    ),
    "state-dtype": (
        library_training.state_dtype,
        "A model in bfloat16 keeps its recurrent state in float32.",
        "A model in bfloat16 keeps its recurrent state in bfloat16: it is rounded at every boundary.",
    ),
}

CHECK_NAMES = ("runs", *_QUESTIONS)
"""Every check, in the order of a result's list."""


def check_library_path(
    model: nn.Module, *, name: str | None = None, family: str | None = None, seed: int = 0
) -> CheckResult:
    """Judges a causal language model of transformers by its own forward and its own cache.

    Args:
        model: any dtype and device; comes back in the mode it came in. One question casts a copy of its weights to
            bfloat16, so that memory peaks at one and a half models.
        name: what the result calls it; the class's name if not given.
        family: its kind of recurrence; looked up by class if not given.
        seed: of the random tokens.

    Returns:
        One Check for every question that applies. `value` is the largest error max|a - r| / max|r| of logits or
        state unless the check says otherwise, None where the answer is yes or no. A check that stopped with an
        exception has failed; its meaning says with which.

    Raises:
        InputError: the model is wrapped or not one of transformers, takes no cache, or keeps neither a recurrent
            nor a window state.
    """
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"{type(model).__name__} is not a model of transformers; give one, or its directory.")
    if is_wrapped(model):
        raise InputError(f"{type(model).__name__} is wrapped, so its own path is not in use; call unwrap(model) first.")
    kind = type(model).__name__.removesuffix("ForCausalLM")
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), _quiet():
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
    rows = [["model", "family", *present], ["---"] * (2 + len(present))]
    for result in results:
        found = {check.name: check for check in result.checks}
        rows.append([result.model, result.family, *(_cell(found.get(name)) for name in present)])
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    traps = {"runs": _CRASH} | {name: trap for name, (_, _, trap) in _QUESTIONS.items()}
    explained = "\n".join(f"- **{name}**: {traps[name]}" for name in present)
    versions = f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}, CPU"
    return _PAGE.format(versions=versions, table=table, explained=explained)


_CRASH = "The class crashes as soon as it is asked for a cache."

_PAGE = """# What the library itself does with a recurrent state

{versions}. Tiny random models of every recurrent and hybrid class with a long memory, each run by its own forward
through its own cache, without lengthen. Written by `lengthen check --as-is --markdown`; give it a model to judge that one.
`lengthen check` judges a wrapped model.

`ok`: passed. `error`: an exception. `no`: failed, where no number exists. Empty: the question does not apply.
A number is a failure: the error relative to the largest reference value, but for state-carried the share of the
state's effect that is lost (1: all), for weights-untouched the parameters changed, for state-dtype the state's
machine epsilon.

{table}

## What each failure does

{explained}
"""


def _examine(model: PreTrainedModel, seed: int) -> list[Check]:
    path = LibraryPath(model)
    subject = Subject(path, seed)
    try:
        cache = path.run(subject.short, subject.start())[1]
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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's own warnings: the findings say it."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(verbosity)


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
