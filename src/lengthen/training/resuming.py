"""ResumableTrainer: transformers' Trainer, with checkpoints from which a run goes on as if it had never stopped.

To what the Trainer saves (weights, optimiser, schedule, random generators) they add, for each process, the intervention
with its states, the position in the windows, the losses so far, and what is summed up for the next line of the log.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback
from transformers.trainer_utils import TrainOutput

from lengthen.data import Windows
from lengthen.errors import InputError
from lengthen.interventions import Intervention
from lengthen.models import weights_fingerprint
from lengthen.training import checkpoints
from lengthen.training.processes import all_or_none, first_decides

IDENTITY = (
    *("max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "seed", "optim", "learning_rate"),
    *("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2"),
    *("adam_epsilon", "max_grad_norm", "bf16", "fp16", "logging_steps"),
)
"""The TrainingArguments that decide what a run learns and logs."""


class ResumableTrainer(Trainer):
    """A Trainer over windows that saves and resumes itself exactly; see StateTrainer, which adds the initial states.

    losses: the training loss of every optimiser step so far. seconds: of training so far, over all resumptions.
    """

    windows: Windows
    intervention: Intervention

    def __init__(self, model: nn.Module, args: TrainingArguments, **kwargs: Any) -> None:
        if args.load_best_model_at_end or args.save_only_model:
            raise InputError(
                "load_best_model_at_end and save_only_model do not go with checkpoints that resume exactly; leave them out."
            )
        self.losses: list[float] = []
        self.first_step = 0
        self._identity: dict[str, Any] = {}
        self._logged: dict[str, float] = {}
        self._earlier_seconds, self._began = 0.0, time.perf_counter()
        self._unfinished: Path | None = None
        super().__init__(model=model, args=args, **kwargs)
        self.add_callback(_Bookkeeping(self))
        if self.pop_callback(TensorBoardCallback) is not None:
            self.add_callback(_TensorBoard)

    @property
    def seconds(self) -> float:
        return self._earlier_seconds + time.perf_counter() - self._began

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Trains to the end.

        resume_from_checkpoint: a checkpoint's folder, or True for the last one in output_dir (a fresh start where there
        is none). Raises InputError where it is damaged, naming the last good one, or belongs to another run.
        """
        checkpoint: Path | None = None
        if resume_from_checkpoint or self.args.save_strategy != "no":
            self._identity = self._describe_run()
            asked = resume_from_checkpoint
            checkpoint = first_decides(lambda: self._checkpoint_for(asked) if asked else None)
        self._began = time.perf_counter()
        if checkpoint is None:
            return super().train(None, *args, **kwargs)
        self._restore(checkpoint)
        return super().train(str(checkpoint), *args, **kwargs)

    # -- writing ------------------------------------------------------------------------------------------------------

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._unfinished) if self._unfinished is not None else super()._get_output_dir(trial)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        assert self.args.output_dir is not None
        folder, name = Path(self.args.output_dir), f"{checkpoints.PREFIX}{self.state.global_step}"
        what = f"The checkpoint of step {self.state.global_step}"
        with all_or_none(), checkpoints.writing(what, folder):
            if self.is_world_process_zero():
                checkpoints.begin(folder)
        self._unfinished = folder / checkpoints.UNFINISHED
        try:
            with all_or_none(), checkpoints.writing(what, folder):
                super()._save_checkpoint(model, trial)
                self._save_own(self._unfinished / name)
        finally:
            self._unfinished = None
        with all_or_none(), checkpoints.writing(what, folder):
            if self.is_world_process_zero():
                checkpoints.seal(folder / checkpoints.UNFINISHED / name, folder / name, self._identity)
                checkpoints.clear(folder)
                if self.args.save_total_limit:
                    checkpoints.keep_last(folder, self.args.save_total_limit)

    def _save_own(self, checkpoint: Path) -> None:
        """This process's part that the Trainer knows nothing of."""
        folder = self._own_part(checkpoint)
        folder.mkdir(parents=True)
        self.intervention.save(folder)
        progress = {
            "windows": self.windows.state_dict(),
            "losses": self.losses,
            "seconds": self.seconds,
            "stopped": self.control.should_training_stop,
            "logged": {
                "sum": float(self._tr_loss),
                "total": self._total_loss_scalar,
                "step": self._globalstep_last_logged,
            },
        }
        (folder / "progress.json").write_text(json.dumps(progress))

    # -- reading ------------------------------------------------------------------------------------------------------

    def _checkpoint_for(self, asked: str | bool) -> Path | None:
        assert self.args.output_dir is not None
        if asked is True:
            folder = Path(self.args.output_dir)
            checkpoints.clear(folder)
            found = checkpoints.latest(folder, self._identity)
            if self.args.save_total_limit:  # a run killed between a checkpoint and this left one too many
                checkpoints.keep_last(folder, self.args.save_total_limit)
            return found
        checkpoints.require_usable(Path(str(asked)), self._identity)
        return Path(str(asked))

    def _restore(self, checkpoint: Path) -> None:
        folder = self._own_part(checkpoint)
        progress = json.loads((folder / "progress.json").read_text())
        self.windows.load_state_dict(progress["windows"])
        self.intervention.load(folder)
        self.losses, self._logged = progress["losses"], progress["logged"]
        self._earlier_seconds = progress["seconds"]
        self.first_step = self.args.max_steps if progress["stopped"] else len(self.losses)

    def _restore_log(self) -> None:
        """Puts back what the Trainer sums up between two lines of its log, and begins anew when it resumes."""
        self.state.compute_steps(self.args, self.args.max_steps)
        if self._logged:
            self._tr_loss += self._logged["sum"]
            self._total_loss_scalar, self._globalstep_last_logged = self._logged["total"], int(self._logged["step"])
            self._initial_global_step = 0

    def _own_part(self, checkpoint: Path) -> Path:
        return checkpoint / f"process-{self.args.process_index}"

    def _describe_run(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to go on from, as JSON has it."""
        assert self.model is not None
        settings = {name: getattr(self.args, name) for name in IDENTITY}
        described = {
            "model": weights_fingerprint(self.model),
            "intervention": self.intervention.describe(),
            "processes": self.args.world_size,
            **{name: value for name, value in settings.items() if value is not None},
        }
        return json.loads(json.dumps(described, default=str))


class _Bookkeeping(TrainerCallback):
    """Restores a resumed run's log, and counts `epoch` as the share of all steps: windows have no other end."""

    def __init__(self, trainer: ResumableTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._restore_log()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.epoch = state.global_step / state.max_steps


class _TensorBoard(TensorBoardCallback):
    """Keeps a run's curves in one folder, OUT/tensorboard, however often it is resumed, without what came after the
    checkpoint: TensorBoard drops those points where a later file says from which step on."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.logging_dir = self.logging_dir or str(Path(args.output_dir) / "tensorboard")
            self.tb_writer = self._SummaryWriter(log_dir=self.logging_dir, purge_step=state.global_step + 1)
        super().on_train_begin(args, state, control, **kwargs)
