"""Noise has the size that was asked for, spares windows and maxima, and follows the final states where it is fitted."""

import torch

from lengthen import FittedNoise, RandomNoise
from tests.interventions.states import final_states, rows, zero


def test_random_noise_has_its_std_leaves_windows_and_maxima_alone_and_is_keyed_on_step_and_lane():
    noise = RandomNoise(std=3.0, seed=5)
    one = noise.initial_state(rows(range(8), step=2), zero(8))
    assert abs(one.tensors["l"]["h"].std() - 3.0) < 0.05
    assert one.tensors["l"]["m"].abs().sum() == 0 and one.tensors["l"]["w"].abs().sum() == 0
    again = RandomNoise(std=3.0, seed=5).initial_state(rows([5, 3], step=2, total=8), zero(2))
    assert torch.equal(again.tensors["l"]["h"], one.tensors["l"]["h"][[5, 3]])
    for other in (
        noise.initial_state(rows(range(8), step=3), zero(8)),
        RandomNoise(3.0, seed=6).initial_state(rows(range(8), step=2), zero(8)),
    ):
        assert not torch.equal(other.tensors["l"]["h"], one.tensors["l"]["h"])


def test_relative_noise_is_measured_on_the_first_step_alone():
    """Later final states hold the noise itself: measuring them would let it grow without bound."""
    noise = RandomNoise(std=10.0, relative=True)
    assert noise.initial_state(rows(range(4)), zero(4)) is None
    for step, size in enumerate((0.2, 50.0, 50.0)):
        generator = torch.Generator().manual_seed(step)
        noise.observe(
            rows(range(4), step=step),
            zero(4).map(lambda t, _, g=generator, s=size: torch.randn(t.shape, generator=g) * s),
        )
        given = noise.initial_state(rows(range(4), step=step + 1), zero(4))
        assert abs(given.tensors["l"]["h"].std() - 2.0) < 0.1


def test_fitted_noise_fits_each_head_and_follows_with_momentum():
    fitted = FittedNoise(momentum=0.9)
    assert fitted.initial_state(rows(range(16)), zero(16)) is None
    fitted.observe(rows(range(16)), final_states(0))
    drawn = fitted.initial_state(rows(range(16), step=1), zero(16)).tensors["l"]["h"]
    assert torch.allclose(drawn.mean((0, 2, 3)), torch.tensor([1.0, -3.0]), atol=0.1)  # five standard errors
    assert torch.allclose(drawn.std((0, 2, 3)), torch.tensor([0.5, 2.0]), atol=0.05)
    fitted.observe(rows(range(16), step=1), final_states(1).map(lambda t, _: t + 10))
    moved = fitted.initial_state(rows(range(16), step=2), zero(16)).tensors["l"]["h"]
    assert torch.allclose(moved.mean((0, 2, 3)), torch.tensor([2.0, -2.0]), atol=0.1)  # a tenth of the way
