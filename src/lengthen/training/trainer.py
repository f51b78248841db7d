"""StateTrainer: transformers' Trainer with an initial state for every window and an intervention that observes the final.

It owns its data loader, since lanes belong to ranks; everything else (optimiser, schedule, mixed precision,
distribution, reporting) is the Trainer's own.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainingArguments

from lengthen.data import Windows
from lengthen.errors import InputError, RunError
from lengthen.interventions import Intervention, Rows
from lengthen.models import require_wrapped, wrap, zero_state
from lengthen.results import write_text
from lengthen.training.batches import MicroBatches
from lengthen.training.checkpoints import checkpoints_in, writing
from lengthen.training.resuming import ResumableTrainer

RECURRENCE_PARAMETERS = ("A_log", ".D", "dt_bias", ".bonus", ".r_k", "lower_bounds")
"""How the names end of a recurrence's own parameters (decays, steps, skips, bonuses) that may have more than one axis."""

RUN_KEYS = ("lane", "start", "document", "offset", "labels")


class StateTrainer(ResumableTrainer):
    """Trains a model on windows, each from the initial state that an intervention gives.

    model: wrapped, or wrapped here. windows: of this process, yielding its share of the lanes. intervention: see
    lengthen.interventions. args: transformers.TrainingArguments; max_steps decides the length.
    losses: the training loss of every optimiser step so far. train(resume_from_checkpoint=True) goes on exactly where
    the last checkpoint was written. Raises RunError where the loss or a gradient is no longer finite.
    """

    def __init__(
        self,
        model: nn.Module,
        windows: Windows,
        intervention: Intervention,
        args: TrainingArguments,
        callbacks: list[TrainerCallback] | None = None,
        **kwargs: Any,
    ) -> None:
        own = windows.own_lanes.stop - windows.own_lanes.start
        if own % args.gradient_accumulation_steps:
            raise InputError(
                f"The {own} rows of a process cannot be cut into {args.gradient_accumulation_steps} equal micro-batches; "
                "choose rows that gradient_accumulation_steps divides."
            )
        wrap(model)
        args.remove_unused_columns = False
        self.windows, self.intervention = windows, intervention
        self._step_loss = 0.0
        super().__init__(model, args, callbacks=callbacks, **kwargs)
        self.model_accepts_loss_kwargs = True  # the wrapped forward takes num_items_in_batch

    def get_train_dataloader(self) -> DataLoader:
        """This process's windows, never shuffled, sharded or padded by anyone else."""
        steps = range(self.first_step, self.args.max_steps)
        batches = MicroBatches(self.windows, self.args.gradient_accumulation_steps, steps)
        # A generator of its own: the loader would draw from the global one, once more in a run that was resumed.
        return DataLoader(batches, batch_size=None, num_workers=0, generator=torch.Generator())

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of a micro-batch from its initial state; the intervention sees the final state, detached."""
        arguments = {name: value for name, value in inputs.items() if name not in RUN_KEYS}
        if not model.training:  # an evaluation's rows start from zero, and their labels may still have to be shifted
            loss = model(**arguments, **({} if "shift_labels" in inputs else {"labels": inputs["labels"]})).loss
            return (loss, {"loss": loss}) if return_outputs else loss
        rows = Rows.of(inputs, self.state.global_step, lanes=self.windows.lanes, shuffled=self.windows.shuffled)
        initial_state = self.intervention.initial_state(rows, zero_state(model, len(rows)))
        output = model(**arguments, initial_state=initial_state, num_items_in_batch=num_items_in_batch)
        self.intervention.observe(rows, output.final_state.detach())
        loss = output.loss
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes
        return (loss, output) if return_outputs else loss

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Weight decay is for matrices: not for the recurrence's own parameters, norms, biases."""
        matrices = {name for name, parameter in model.named_parameters() if parameter.squeeze().dim() > 1}
        names = super().get_decay_parameter_names(model)
        return [n for n in names if n in matrices and not n.endswith(RECURRENCE_PARAMETERS)]

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """A micro-batch; notes the loss of each whole step."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._step_loss += float(loss)
        if self.accelerator.sync_gradients:
            self._note_loss()
        return loss

    def _note_loss(self) -> None:
        noted = torch.tensor(self._step_loss, device=self.args.device)
        loss = float(self.accelerator.reduce(noted, reduction="mean"))
        self._step_loss = 0.0
        self._require_finite("training loss", loss)
        self.losses.append(loss)

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        norm = super()._clip_grad_norm(model)
        if self.accelerator.scaler is None and norm is not None:  # a scaler leaves such a step out itself
            self._require_finite("gradient's norm", float(norm))
        return norm

    def _require_finite(self, what: str, value: float) -> None:
        """Ends the run before weights that are not numbers are stepped to, or saved."""
        if not math.isfinite(value):
            good = checkpoints_in(Path(self.args.output_dir or ""))
            kept = f" The last good checkpoint is {good[-1]}." if good else ""
            raise RunError(
                f"The {what} is {value} at step {self.state.global_step}; lower the learning rate "
                f"({self._get_learning_rate():g}) or check the data.{kept}"
            )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the model as its library does, after making sure that its states were really passed until now."""
        assert self.model is not None
        require_wrapped(self.model)
        super().save_model(output_dir, _internal_call)


class MetricsFile(TrainerCallback):
    """Writes what the Trainer logs to metrics.jsonl, on the first process only; cut back to where a run is resumed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            write_text(self.path, "".join(_line(logged) for logged in state.log_history))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs:
            with writing("The metrics", self.path.parent), self.path.open("a", encoding="utf-8") as file:
                file.write(_line({**logs, "step": state.global_step}))


def _line(logged: dict[str, float]) -> str:
    return json.dumps({"step": logged["step"], **logged}) + "\n"


class StepProgress(TrainerCallback):
    """Calls progress(done, todo) after every optimiser step."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.progress(state.global_step, state.max_steps)
