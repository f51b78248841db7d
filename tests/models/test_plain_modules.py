"""Any module wrapped: its own arguments and what it returns, losses of its predictions, and refusals in a sentence."""

import pytest
import torch
from torch import nn

from lengthen import check, wrap
from lengthen.errors import InputError
from lengthen.models.agreement import relative_error, state_error
from tests.models.plain_models import Regressor, Using, frames

X = frames(3, 40)


class Tagger(nn.Module):
    """Tokens and speaker features -> a mapping, with what the LSTM ended with."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 6)
        self.lower = nn.LSTM(8, 7, batch_first=True)
        self.upper = nn.GRU(7, 7, batch_first=True)
        self.head = nn.Linear(7, 11)

    def forward(self, tokens, speaker, *, scale=1.0):
        y, (hidden, _) = self.lower(torch.cat([self.embedding(tokens), speaker], -1))
        return {"logits": self.head(self.upper(y)[0]) * scale, "hidden": hidden}


TOKENS = torch.randint(11, (3, 40), generator=torch.Generator().manual_seed(1))


def test_a_module_keeps_its_arguments_and_what_it_returns():
    model, speaker = Tagger(), torch.randn(3, 40, 2, generator=torch.Generator().manual_seed(2))
    expected = model(TOKENS, speaker, scale=2.0)
    output = wrap(model)(TOKENS, speaker=speaker, scale=2.0, shift_labels=TOKENS)
    assert torch.equal(output.predictions, expected["logits"])
    assert torch.equal(output.returned["hidden"], expected["hidden"])
    assert set(output.final_state.tensors) == {"lower", "upper"}
    flat = nn.functional.cross_entropy(expected["logits"].flatten(0, 1), TOKENS.flatten())
    torch.testing.assert_close(output.loss, flat)
    mask = torch.ones(3, 40, dtype=torch.long)
    mask[0, :5], mask[1, 20:26] = 0, 0
    masked = model(TOKENS, speaker, scale=2.0, attention_mask=mask)
    alone = model(TOKENS[:1, 5:], speaker[:1, 5:], scale=2.0)
    assert relative_error(masked.predictions[:1, 5:], alone.predictions) < 1e-6
    assert state_error(masked.final_state.index([0]), alone.final_state) < 1e-6
    with pytest.raises(TypeError, match="scael"):
        model(TOKENS, speaker, scael=2.0)


def test_losses_are_means_over_real_positions():
    model = wrap(Regressor())
    targets, mask = frames(3, 40, seed=3)[..., :3], torch.ones(3, 40, dtype=torch.long)
    mask[1, 25:] = 0
    output = model(inputs=X, shift_labels=targets, attention_mask=mask)
    squared = (output.predictions - targets).square().mean(-1)
    torch.testing.assert_close(output.loss, squared[mask.bool()].mean())
    labels = torch.zeros(3, 40, dtype=torch.long).masked_fill(mask == 0, -100)
    torch.testing.assert_close(model(X, targets=targets, shift_labels=labels).loss, output.loss)
    items = model(X, shift_labels=targets, attention_mask=mask, num_items_in_batch=1000).loss
    torch.testing.assert_close(items, squared[mask.bool()].sum() / 1000)
    model.position_losses = lambda predictions, targets: (predictions - targets).abs().amax(-1)
    expected = (output.predictions - targets).abs().amax(-1)
    torch.testing.assert_close(model(X, shift_labels=targets).loss, expected.mean())


def test_rows_lost_on_the_way_are_refused_from_zero_too():
    with pytest.raises(InputError, match="given 40 rows, the module 3"):
        wrap(Using(lambda gru, x: gru(x.transpose(0, 1))[0]))(X)


class NoInputs(Using):
    def forward(self):
        pass


class NamedInputs(Using):
    def forward(self, *, x):
        pass


@pytest.mark.parametrize("cls", [NoInputs, NamedInputs])
def test_a_forward_without_a_first_argument_is_refused(cls):
    with pytest.raises(InputError, match=f"{cls.__name__}.forward takes no first argument"):
        wrap(cls(None))


@pytest.mark.parametrize(
    "targets, match",
    [
        (torch.zeros(3, 40), r"\(3, 40, 3\) do not fit targets of shape \(3, 40\)"),  # broadcasting would take it
        (torch.zeros(3, 40, 3, dtype=torch.long), "predictions .rows, positions, values."),
    ],
)
def test_targets_that_do_not_fit_are_refused(targets, match):
    with pytest.raises(InputError, match=match):
        wrap(Regressor())(X, shift_labels=targets)


def test_predictions_must_be_a_tensor_and_inputs_too():
    model = wrap(Using(lambda gru, x: {"pitch": gru(x)[0]}))
    assert model(X).predictions is None
    with pytest.raises(InputError, match="no predictions"):
        model(X, shift_labels=X)
    pooled = wrap(Using(lambda gru, x: gru(x)[0].mean(1)))
    assert pooled(X).returned.shape == (3, 5) and pooled(X).predictions is None
    with pytest.raises(InputError, match="no predictions"):
        check(pooled, inputs=X)
    with pytest.raises(InputError, match="a list"):
        model([X])
    with pytest.raises(InputError, match="give check an example"):
        check(Regressor())
