"""Any Trainer with InitialStates before it trains as a plain loop over the same rows does."""

import pytest
import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainingArguments

from lengthen import TBPTT, StatePassing, Zero, wrap, zero_state
from lengthen.errors import InputError
from lengthen.interventions import Rows
from lengthen.training import InitialStates
from tests.training.matrix_cases import model


class InOrder(InitialStates, Trainer):
    def _get_train_sampler(self, *args):
        return SequentialSampler(self.train_dataset)


def rows_of_text(plays, count=30, length=16):
    tokens = plays[0].document(0)[: count * length].astype(int).reshape(count, length)
    return [{"input_ids": row.tolist(), "labels": row.tolist()} for row in tokens]


def trained(folder, plays, intervention, micro_batches=1, **options):
    arguments = TrainingArguments(
        str(folder),
        max_steps=4,
        per_device_train_batch_size=8 // micro_batches,
        gradient_accumulation_steps=micro_batches,
        optim="sgd",
        learning_rate=0.1,
        lr_scheduler_type="constant",
        use_cpu=True,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        **options,
    )
    trainer = InOrder(model(), arguments, train_dataset=rows_of_text(plays), intervention=intervention)
    trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line], trainer


def by_hand(plays, intervention):
    """Four steps over thirty rows in eights, the last of six."""
    made = wrap(model()).train()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    ids = torch.tensor([row["input_ids"] for row in rows_of_text(plays)])
    losses = []
    for step, batch in enumerate(ids.split(8)):
        start = torch.zeros(len(batch), dtype=torch.bool)
        rows = Rows(torch.arange(len(batch)), start, step, lanes=8, shuffled=True, tokens=16)
        output = made(batch, labels=batch, initial_state=intervention.initial_state(rows, zero_state(made, len(batch))))
        output.loss.backward()
        intervention.observe(rows, output.final_state.detach())
        torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(output.loss.item())
    return losses


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_equals_a_plain_loop_down_to_an_uneven_last_batch(tmp_path, plays, micro_batches):
    expected = by_hand(plays, StatePassing())
    assert max(abs(a - b) for a, b in zip(expected, by_hand(plays, Zero()))) > 1e-2
    losses, _ = trained(tmp_path, plays, StatePassing(), micro_batches)
    assert losses == pytest.approx(expected, rel=1e-5)


def test_evaluation_starts_from_zero(tmp_path, plays):
    _, trainer = trained(tmp_path, plays, StatePassing())
    evaluated = rows_of_text(plays)[:5]
    found = trainer.evaluate(evaluated)["eval_loss"]
    ids = torch.tensor([row["input_ids"] for row in evaluated])
    with torch.no_grad():
        assert found == pytest.approx(float(trainer.model.eval()(ids, labels=ids).loss), rel=1e-5)


def test_tbptt_is_refused(tmp_path, plays):
    with pytest.raises(InputError, match="shuffled rows"):
        trained(tmp_path, plays, TBPTT())
