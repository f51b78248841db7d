"""Logits and losses from hidden states: those of the library's own head, counted where there is a target."""

import pytest
import torch
import torch.nn.functional as F

from lengthen import wrap
from lengthen.models.head import IGNORED, head_logits, head_loss, masked, shifted, token_losses
from tests.conftest import tiny_mamba2
from tests.models.family_properties import IDS, MASK, builder

SCALED = {
    "Mamba2": {},
    "FalconH1": {"lm_head_multiplier": 0.3},
    "GraniteMoeHybrid": {"logits_scaling": 3.0},
    "RecurrentGemma": {"logits_soft_cap": 0.5},
}


@pytest.fixture(params=SCALED)
def model(request):
    return builder(request.param, SCALED[request.param])()


def hidden_of(model, ids=IDS):
    return getattr(model, model.base_model_prefix)(ids, use_cache=False)[0]


def drawn_targets(hidden, ignored=5):
    """Random ids, every fifth of which is none."""
    targets = torch.randint(64, hidden.shape[:2], generator=torch.Generator().manual_seed(0))
    return targets.masked_fill(torch.arange(targets.shape[1]) % ignored == 0, IGNORED)


def test_a_target_is_the_next_label_and_padding_neither_predicts_nor_is_predicted():
    labels = torch.tensor([[1, 2, 3, 4], [5, IGNORED, 7, 8]])
    assert shifted(labels, None).tolist() == [[2, 3, 4, IGNORED], [IGNORED, 7, 8, IGNORED]]
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]])
    assert shifted(labels, mask).tolist() == [[IGNORED, 3, 4, IGNORED], [IGNORED, 7, IGNORED, IGNORED]]
    assert shifted(labels[:, :1], None).tolist() == [[IGNORED], [IGNORED]]
    assert masked(labels, mask).tolist() == [[IGNORED, 2, 3, 4], [5, IGNORED, 7, IGNORED]]
    assert masked(labels, None) is labels and labels[0, 0] == 1


@torch.no_grad()
def test_logits_are_the_library_s_of_all_positions_the_last_or_those_asked_for(model):
    hidden, expected = hidden_of(model), model(IDS, use_cache=False).logits
    torch.testing.assert_close(head_logits(model, hidden), expected)
    torch.testing.assert_close(head_logits(model, hidden, 2), expected[:, -2:])
    torch.testing.assert_close(head_logits(model, hidden, torch.tensor([4, 0])), expected[:, [4, 0]])


@torch.no_grad()
def test_logits_are_float32_at_least():
    model = tiny_mamba2()
    hidden = hidden_of(model)
    for dtype, kept in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        assert head_logits(model.to(dtype), hidden).dtype == kept


@torch.no_grad()
def test_token_losses_are_cross_entropies_and_zero_without_a_target(model):
    hidden = hidden_of(model)
    targets = drawn_targets(hidden)
    expected = F.cross_entropy(head_logits(model, hidden).mT, targets, ignore_index=IGNORED, reduction="none")
    found = token_losses(model, hidden, targets)
    torch.testing.assert_close(found, expected)
    assert not found[targets == IGNORED].any() and found[targets != IGNORED].all()


def test_the_loss_is_the_mean_over_targets_or_their_sum_over_the_items_given(model):
    hidden = hidden_of(model).detach().requires_grad_()
    targets = drawn_targets(hidden)
    total, count = token_losses(model, hidden, targets).sum(), (targets != IGNORED).sum()
    mean = head_loss(model, hidden, targets)
    torch.testing.assert_close(mean, total / count)
    for items in (50, torch.tensor(50)):
        torch.testing.assert_close(head_loss(model, hidden, targets, items), total / 50)
    (found,) = torch.autograd.grad(mean, hidden)
    exact = F.cross_entropy(head_logits(model, hidden).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    torch.testing.assert_close(found, torch.autograd.grad(exact, hidden)[0])


def test_a_loss_in_several_chunks_is_one_loss():
    """A capped head is taken 1,024 positions at a time."""
    model = builder("RecurrentGemma", {"logits_soft_cap": 0.5})()
    hidden = torch.randn(3, 700, 32, generator=torch.Generator().manual_seed(0))
    targets = drawn_targets(hidden)
    rows = [token_losses(model, part, wanted) for part, wanted in zip(hidden.split(1), targets.split(1))]
    torch.testing.assert_close(token_losses(model, hidden, targets), torch.cat(rows))
    mean = torch.cat(rows).sum() / (targets != IGNORED).sum()
    torch.testing.assert_close(head_loss(model, hidden, targets), mean)


@torch.no_grad()
def test_what_has_taken_over_the_head_is_heard():
    model = tiny_mamba2()
    hidden = hidden_of(model)
    targets = drawn_targets(hidden)
    model.lm_head.register_forward_hook(lambda head, args, logits: 3 * logits)
    tripled = 3 * (hidden @ model.lm_head.weight.T)
    expected = F.cross_entropy(tripled.mT, targets, ignore_index=IGNORED, reduction="none")
    torch.testing.assert_close(token_losses(model, hidden, targets), expected)


def test_large_logits_are_drawn_to_zero_in_the_gradient_alone():
    model = tiny_mamba2()
    hidden = hidden_of(model).detach().requires_grad_()
    targets, mask = drawn_targets(hidden), MASK
    plain = head_loss(model, hidden, targets, attention_mask=mask)
    model.config.use_l2warp = True
    drawn = head_loss(model, hidden, targets, attention_mask=mask)
    largest = head_logits(model, hidden)[mask.bool()].amax(-1)
    by_hand = plain + 1e-4 / 2 * largest.square().mean()
    assert drawn == plain
    found, before, expected = (
        torch.autograd.grad(loss, hidden, retain_graph=True)[0] for loss in (drawn, plain, by_hand)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-9)
    assert not torch.equal(found, before)


@pytest.mark.parametrize("asked", [{}, {"output_router_logits": True}], ids=["by the configuration", "by the call"])
def test_the_balancing_loss_of_experts_is_the_library_s(asked):
    model = builder("GraniteMoeHybrid", {"router_aux_loss_coef": 0.5, "output_router_logits": not asked})()
    expected = model(IDS, labels=IDS, attention_mask=MASK, use_cache=False, **asked)
    found = wrap(model)(IDS, labels=IDS, attention_mask=MASK, **asked)
    assert float(expected.aux_loss) > 0
    torch.testing.assert_close(found.aux_loss, expected.aux_loss)
    torch.testing.assert_close(
        found.loss - 0.5 * found.aux_loss, model(IDS, labels=IDS, attention_mask=MASK, output_router_logits=False).loss
    )
    assert len(found.router_logits) == len(expected.router_logits)


def test_padding_takes_no_part_in_the_z_loss():
    model = wrap(builder("Bamba", {"z_loss_coefficient": 1.0})())
    alone = model(IDS[:1, 9:], labels=IDS[:1, 9:]).loss
    torch.testing.assert_close(model(IDS[:1], labels=IDS[:1], attention_mask=MASK[:1]).loss, alone)
