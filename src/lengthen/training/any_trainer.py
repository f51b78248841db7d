"""InitialStates: what makes any Trainer over shuffled rows (transformers', TRL's) train from an intervention's states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lengthen.interventions import Intervention, Rows
from lengthen.models import wrap, zero_state

if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object


class InitialStates(_Base):
    """Stands before a Trainer class: `class MyTrainer(InitialStates, Trainer)`, then MyTrainer(..., intervention=...).

    The Trainer keeps its data, collator, optimiser and checkpoints; its loss is the wrapped model's own cross entropy,
    with `labels` as the library takes them. A row's lane is its place in the step's batch over all micro-batches and
    processes. Rows are taken to be shuffled, so TBPTT is refused, as is a packed batch. A resumed run's first step
    starts from zero; StateTrainer resumes exactly.
    """

    def __init__(self, *args: Any, intervention: Intervention, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self.model is not None
        wrap(self.model)  # now, since a Trainer may have put a forward of its own on the model
        self.intervention = intervention
        self.model_accepts_loss_kwargs = True
        self._micro_batch = 0

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of a micro-batch from its initial state, in training; from zero in evaluation."""
        if not model.training:
            loss = model(**inputs).loss
            return (loss, {"loss": loss}) if return_outputs else loss
        rows = self._rows(inputs["input_ids"])
        initial_state = self.intervention.initial_state(rows, zero_state(model, len(rows)))
        output = model(**inputs, initial_state=initial_state, num_items_in_batch=num_items_in_batch)
        self.intervention.observe(rows, output.final_state.detach())
        self._micro_batch = 0 if self.accelerator.sync_gradients else self._micro_batch + 1
        loss = output.loss
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes
        return (loss, output) if return_outputs else loss

    def _rows(self, input_ids: Tensor) -> Rows:
        rows, micro_batches = self.args.per_device_train_batch_size, self.args.gradient_accumulation_steps
        first = (self.accelerator.process_index * micro_batches + self._micro_batch) * rows
        return Rows(
            lane=torch.arange(first, first + len(input_ids)),
            start=torch.zeros(len(input_ids), dtype=torch.bool),
            step=self.state.global_step,
            lanes=rows * micro_batches * self.accelerator.num_processes,
            shuffled=True,
            tokens=input_ids.shape[1],
        )
