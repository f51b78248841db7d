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
from transformers import Trainer, TrainerCallback, TrainingArguments

from lengthen.data import Windows
from lengthen.errors import InputError, RunError
from lengthen.interventions import Intervention, Rows
from lengthen.models import require_wrapped, wrap, zero_state
from lengthen.training.batches import MicroBatches

RUN_KEYS = ("lane", "start", "document", "offset", "labels")


class StateTrainer(Trainer):
    """Trains a model on windows, each from the initial state that an intervention gives.

    model: wrapped, or wrapped here. windows: of this process, yielding its share of the lanes. intervention: see
    lengthen.interventions. args: transformers.TrainingArguments; max_steps decides the length.
    losses: the training loss of every optimiser step so far, also written to metrics.jsonl beside the checkpoints.
    Raises RunError where the loss is no longer finite.
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
        self.losses: list[float] = []
        self._step_loss = 0.0
        super().__init__(model=model, args=args, callbacks=callbacks, **kwargs)
        self.model_accepts_loss_kwargs = True  # the wrapped forward takes num_items_in_batch

    def get_train_dataloader(self) -> DataLoader:
        """This process's windows, never shuffled, sharded or padded by anyone else."""
        batches = MicroBatches(self.windows, self.args.gradient_accumulation_steps, self.state.global_step)
        return DataLoader(batches, batch_size=None, num_workers=0)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of a micro-batch from its initial state; the intervention sees the final state, detached."""
        arguments = {name: value for name, value in inputs.items() if name not in RUN_KEYS}
        if not model.training:
            output = model(**arguments)
            return (output.loss, output) if return_outputs else output.loss
        rows = Rows.of(inputs, self.state.global_step, lanes=self.windows.lanes, shuffled=self.windows.shuffled)
        initial_state = self.intervention.initial_state(rows, zero_state(model, len(rows)))
        output = model(**arguments, initial_state=initial_state, num_items_in_batch=num_items_in_batch)
        self.intervention.observe(rows, output.final_state.detach())
        loss = output.loss
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes
        return (loss, output) if return_outputs else loss

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Weight decay is for matrices: not for the recurrence's own parameters (decays, steps, skips), norms, biases."""
        matrices = {name for name, parameter in model.named_parameters() if parameter.dim() > 1}
        names = super().get_decay_parameter_names(model)
        return [n for n in names if n in matrices and not n.endswith(("A_log", ".D", "dt_bias"))]

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """A micro-batch; notes the loss of each whole step."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._step_loss += float(loss)
        if self.accelerator.sync_gradients:
            self._note_loss()
        return loss

    def _note_loss(self) -> None:
        noted = torch.tensor(self._step_loss, device=self.args.device)
        step, loss = self.state.global_step, float(self.accelerator.reduce(noted, reduction="mean"))
        self._step_loss = 0.0
        if not math.isfinite(loss):
            raise RunError(
                f"The training loss is {loss} at step {step}; lower the learning rate ({self._get_learning_rate():g}) "
                "or check the data."
            )
        self.losses.append(loss)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the model as its library does, after making sure that its states were really passed until now."""
        assert self.model is not None
        require_wrapped(self.model)
        super().save_model(output_dir, _internal_call)


class MetricsFile(TrainerCallback):
    """Appends what the Trainer logs to metrics.jsonl, on the first process only."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **logs}) + "\n")


class StepProgress(TrainerCallback):
    """Calls progress(done, todo) after every optimiser step."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.progress(state.global_step, state.max_steps)


def process_share() -> tuple[int, int]:
    """(rank, world size) of this process."""
    from accelerate import PartialState

    state = PartialState(cpu=not torch.cuda.is_available())
    return state.process_index, state.num_processes
