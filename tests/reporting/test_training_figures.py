"""Training losses as drawn: the means of blocks of steps at their middles, each run from its own beginning."""

import dataclasses

import pytest

from lengthen.reporting.points import LOSS_POINTS
from lengthen.reporting.training_figures import training_loss_figure
from tests.reporting.drawing import drawn, places, scale, words
from tests.reporting.example_results import demonstration, diagnosis, findings, training


@pytest.mark.parametrize(("steps", "block"), [(500, 10), (20, 1)])
def test_a_point_is_the_mean_over_a_block_of_steps_at_its_middle(steps, block):
    record = training(steps=steps)
    figure = training_loss_figure(findings(record))
    points = drawn(figure)["symbol", "mark"]
    blocks = [record.losses[i : i + block] for i in range(0, steps, block)]
    assert len(points) == figure.points == len(blocks)
    across = scale([block * i + (block + 1) / 2 for i in range(len(blocks))], places(points, "x"))
    assert scale([sum(b) / len(b) for b in blocks], places(points, "y")).c[0] < 0 < across.c[0]
    told = "mean over a block of 10 steps" if block > 1 else "The loss of each step."
    assert told in figure.caption


def test_training_from_random_weights_has_a_panel_and_scales_of_its_own():
    figure = training_loss_figure(findings(demonstration()))
    shown = drawn(figure)
    assert words(shown, "title-text") == ["Pre-training", "Post-training"]
    assert figure.points == len(shown["symbol", "mark"]) == 6 * LOSS_POINTS
    assert "a block of 10 to 20 steps" in figure.caption
    first, *others = (shown["symbol", "mark"][i * LOSS_POINTS : (i + 1) * LOSS_POINTS] for i in range(6))
    ends = [places(first, "x")[-1], *(places(other, "x")[-1] for other in others)]
    assert ends == pytest.approx([ends[0]] * 6, abs=4), "1,000 steps are as wide as 500"


def test_a_loss_that_is_not_finite_breaks_the_curve_and_is_counted():
    lost = dataclasses.replace(training(steps=20), losses=[2.0] * 10 + [float("nan")] * 4 + [1.0] * 6)
    figure = training_loss_figure(findings(lost))
    assert figure.points == 16 and figure.caption.endswith("not finite: 4.")


def test_without_training_there_is_no_figure():
    assert training_loss_figure(findings(diagnosis())) is None


@pytest.mark.parametrize("steps", [4, 500])
def test_a_run_by_itself_has_one_axis_of_whole_steps(steps):
    shown = drawn(training_loss_figure(findings(training(steps=steps))))
    assert words(shown, "axis-title") == ["step", "loss, nats a token"]
    ticks = [label for label in words(shown, "axis-label") if label.replace(",", "").isdigit()]
    assert len(set(ticks)) == len(ticks) >= 3
