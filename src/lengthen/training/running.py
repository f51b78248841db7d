"""One training run from start to end: windows, optimiser settings, the trainer, the run folder."""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PrinterCallback, TrainerCallback, TrainingArguments

from lengthen.data import Corpus, LaneWindows, ShuffledWindows, Windows
from lengthen.errors import InputError
from lengthen.interventions import TBPTT, Intervention, Mixture
from lengthen.locking import alone_in
from lengthen.models import library_model, vocabulary_size
from lengthen.results import TrainingRecord, versions
from lengthen.streaming import Progress
from lengthen.training.checkpoints import checkpoints_in, writing
from lengthen.training.processes import TIMEOUT, all_or_none, first_decides, join, named_if_lost, process_share
from lengthen.training.trainer import MetricsFile, StateTrainer, StepProgress
from lengthen.training.watching import Watch, Watching

OWNED = frozenset(
    {"output_dir", "max_steps", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps"}
    | {"learning_rate", "warmup_steps", "seed", "use_cpu", "ignore_data_skip", "remove_unused_columns"}
    | {"save_strategy", "save_steps", "save_only_model", "load_best_model_at_end", "resume_from_checkpoint"}
)
"""TrainingArguments that follow from lengthen's own options."""
CHECKPOINTS_KEPT = 2


@dataclass(frozen=True)
class Optimisation:
    """How a run is optimised: AdamW with betas (0.9, 0.95), a warm-up, then a cosine to a share of the peak.

    rows: windows a step, over all processes and micro-batches. learning_rate: the peak. warmup: steps.
    final_share: the last learning rate as a share of the peak. config: further transformers.TrainingArguments.
    save_steps: steps between two checkpoints, of which the last two are kept; None: none is written.
    """

    steps: int
    rows: int = 16
    learning_rate: float = 3e-4
    warmup: int = 0
    final_share: float = 0.0
    weight_decay: float = 0.1
    clip: float = 1.0
    accumulation: int = 1
    config: Mapping[str, Any] = field(default_factory=dict)
    save_steps: int | None = None


def wants_lanes(intervention: Intervention) -> bool:
    """Whether an intervention continues documents, so that windows must come in lanes."""
    if isinstance(intervention, Mixture):
        return any(wants_lanes(part) for part, _ in intervention.parts)
    return isinstance(intervention, TBPTT)


def windows_for(corpus: Corpus, intervention: Intervention, *, context: int, lanes: int, seed: int) -> Windows:
    """Windows in lanes where the intervention continues documents, shuffled ones elsewhere; this process's share.

    Where there are fewer documents than lanes, documents are cut into sections, each of which starts from zero.
    """
    rank, world = process_share()
    if not wants_lanes(intervention):
        return ShuffledWindows(corpus, context=context, lanes=lanes, seed=seed, rank=rank, world_size=world)
    if (corpus.inputs > 0).sum() < lanes:  # a few long documents: cut them, so that every lane has one
        corpus = corpus.sections(context * max(1, int(corpus.inputs.sum()) // (lanes * context)) + 1)
    return LaneWindows(corpus, context=context, lanes=lanes, seed=seed, rank=rank, world_size=world)


def run_training(
    model: nn.Module,
    corpus: Corpus,
    intervention: Intervention,
    optimisation: Optimisation,
    *,
    train_context: int,
    seed: int = 0,
    out: str | Path | None = None,
    name: str = "",
    tokenizer: Any = None,
    progress: Progress | None = None,
    resume: bool = False,
    watch: Watch | None = None,
) -> TrainingRecord:
    """Trains the model in place and, where `out` is given, writes metrics.jsonl, model/ and results/training.json there.

    tokenizer: a directory, a hub name or an object, written beside the model; None or "bytes" writes none.
    resume: go on from the last checkpoint in `out` (from the beginning where there is none), exactly as the run would
    have gone on: the model given is the one that the run began with. watch: probes whose findings are logged on the way,
    and may end the run. Raises InputError for steps below 1, an option transformers.TrainingArguments does not know, or
    a checkpoint that is damaged or of another run; RunError where the loss is no longer finite, the disk is full, or another process ended.
    """
    if optimisation.steps < 1:
        raise InputError(f"The number of steps is {optimisation.steps}; give at least 1.")
    if optimisation.accumulation < 1:
        raise InputError(f"The number of micro-batches is {optimisation.accumulation}; give at least 1.")
    if not 0 <= optimisation.warmup <= optimisation.steps:
        raise InputError(
            f"The warm-up takes {optimisation.warmup} of {optimisation.steps} steps; give 0 to {optimisation.steps}."
        )
    if not optimisation.learning_rate > 0:
        raise InputError(f"The learning rate is {optimisation.learning_rate}; give a number above 0.")
    if optimisation.save_steps is not None and optimisation.save_steps < 1:
        raise InputError(f"The steps between two checkpoints are {optimisation.save_steps}; give at least 1.")
    if out is None and (resume or optimisation.save_steps is not None):
        raise InputError("Checkpoints need a run folder to lie in; name one as `out`.")
    join(optimisation.config.get("ddp_timeout", TIMEOUT))
    if out is not None and not resume and first_decides(lambda: bool(checkpoints_in(Path(out)))):
        raise InputError(f"{out} holds the checkpoints of a run; resume it, or choose another folder.")
    asked = [name for name in ("activation_checkpointing", "gradient_checkpointing") if optimisation.config.get(name)]
    if asked and not hasattr(model, "gradient_checkpointing_enable"):
        raise InputError(
            f"{type(library_model(model)).__name__} has no gradient checkpointing to switch on; leave {asked[0]} out of "
            "`training`."
        )
    size = vocabulary_size(model)
    if size is not None:
        corpus.require_vocabulary(size)
    windows = windows_for(corpus, intervention, context=train_context, lanes=optimisation.rows, seed=seed)
    folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="lengthen-"))
    held = ExitStack()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        first_decides(lambda: held.enter_context(alone_in(folder)))
        arguments = _arguments(optimisation, folder, seed, model)
        callbacks: list[TrainerCallback] = []
        if out is not None:
            callbacks.append(MetricsFile(folder / "metrics.jsonl"))
        if progress is not None:
            callbacks.append(StepProgress(progress))
        with _quiet(), named_if_lost():
            trainer = StateTrainer(model, windows, intervention, arguments, callbacks=callbacks)
            trainer.remove_callback(PrinterCallback)
            if watch is not None:
                trainer.add_callback(Watching(trainer, watch))
            trainer.train(resume)
        if out is not None:
            with named_if_lost():
                _save_model(trainer, tokenizer, folder)
        trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_fp32_wrapper=False)
        record = TrainingRecord(
            intervention=intervention.name,
            steps=len(trainer.losses),
            train_context=train_context,
            rows=optimisation.rows,
            learning_rate=optimisation.learning_rate,
            seed=seed,
            seconds=trainer.seconds,
            losses=trainer.losses,
            model=name or type(library_model(model)).__name__,
            out=str(out) if out is not None else "",
            configuration={
                **asdict(optimisation),
                "intervention": intervention.describe(),
                "data": corpus.fingerprint,
            },
            versions=versions(),
            passes=len(trainer.losses) * optimisation.rows * train_context / int(corpus.inputs.sum()),
        )
        if out is not None and trainer.is_world_process_zero():
            record.save(folder / "results" / "training.json")
        return record
    except PermissionError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}); choose another --out.") from None
    finally:
        held.close()
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)


def _save_model(trainer: StateTrainer, tokenizer: Any, folder: Path) -> None:
    """Writes model/, the tokenizer in it, whole or not at all: beside it first, then renamed."""
    unfinished = folder / ".model.unfinished"
    try:
        with all_or_none(), writing("The trained model", folder):
            trainer.save_model(str(unfinished))
            if trainer.is_world_process_zero():
                _save_tokenizer(tokenizer, unfinished)
        if trainer.is_world_process_zero():
            shutil.rmtree(folder / "model", ignore_errors=True)
            unfinished.rename(folder / "model")
    finally:
        if trainer.is_world_process_zero():
            shutil.rmtree(unfinished, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Puts the tokenizer beside the model it was trained with, so that what reads the model reads text alike."""
    if tokenizer is None or tokenizer == "bytes":
        return
    if isinstance(tokenizer, str | Path):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(tokenizer), trust_remote_code=False)
    tokenizer.save_pretrained(folder)


def _arguments(optimisation: Optimisation, folder: Path, seed: int, model: nn.Module) -> TrainingArguments:
    _, world = process_share()
    share = world * optimisation.accumulation
    if optimisation.rows % share:
        raise InputError(
            f"{optimisation.rows} rows a step cannot be shared by {world} processes times {optimisation.accumulation} "
            "micro-batches; choose a multiple."
        )
    taken = sorted(OWNED & set(optimisation.config))
    if taken:
        raise InputError(f"{taken[0]} cannot be set under `training`: lengthen's own options decide it.")
    given: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": optimisation.steps,
        "per_device_train_batch_size": optimisation.rows // share,
        "gradient_accumulation_steps": optimisation.accumulation,
        "learning_rate": optimisation.learning_rate,
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": optimisation.final_share},
        "warmup_steps": optimisation.warmup,
        "weight_decay": optimisation.weight_decay,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "max_grad_norm": optimisation.clip,
        "seed": seed,
        "use_cpu": next(model.parameters()).device.type == "cpu",
        "ddp_find_unused_parameters": any("expert" in name for name, _ in model.named_modules()),
        "logging_steps": 10,
        "save_strategy": "no" if optimisation.save_steps is None else "steps",
        "save_steps": optimisation.save_steps or 1,
        "save_total_limit": CHECKPOINTS_KEPT,
        "report_to": "none",
        "disable_tqdm": True,
        "ignore_data_skip": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
        **optimisation.config,
    }
    try:
        return TrainingArguments(**given)
    except (TypeError, ValueError) as error:
        raise InputError(f"The training options are not accepted by transformers.TrainingArguments: {error}.") from None


class _quiet:
    """Keeps the Trainer's own notices off standard output and error: the run folder holds what it logs."""

    def __enter__(self) -> None:
        self._logger = logging.getLogger("transformers.trainer")
        self._level = self._logger.level
        self._logger.setLevel(logging.ERROR)
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("ignore")

    def __exit__(self, *_: Any) -> None:
        self._warnings.__exit__(None, None, None)
        self._logger.setLevel(self._level)
