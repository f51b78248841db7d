"""Colours: told apart with any kind of colour vision, and seen on their ground."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from lengthen.reporting.palette import DARK, LIGHT, SHAPES

# Linear sRGB as seen without one kind of cone (Machado, Oliveira and Fernandes, 2009, severity 1).
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
# Ottosson's OKLab.
CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
LAB = [
    [0.2104542553, 0.793617785, -0.0040720468],
    [1.9779984951, -2.428592205, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.808675766],
]


def linear(colour):
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def oklab(rgb):
    return LAB @ np.cbrt(CONES @ np.clip(rgb, 0, 1))


def contrast(one, other):
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda t: t.name)
def test_colours_are_told_apart(theme, vision):
    seen = [oklab(VISION[vision] @ linear(c)) for c in theme.colours]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 0.09


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda t: t.name)
def test_everything_is_seen_on_its_ground(theme):
    assert all(contrast(c, theme.ground) >= 3 for c in theme.colours), "3 to 1 is WCAG's for graphics"
    assert contrast(theme.ink, theme.ground) >= 7 and contrast(theme.muted, theme.ground) >= 4.5


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda t: t.name)
def test_the_steps_of_a_ramp_go_away_from_the_ground_in_lightness(theme):
    for vision in VISION.values():
        away = [abs(oklab(vision @ linear(c))[0] - oklab(vision @ linear(theme.ground))[0]) for c in theme.ramp]
        assert all(b - a > 0.05 for a, b in pairwise(away))


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda t: t.name)
def test_what_is_written_on_a_ramp_is_read(theme):
    assert all(contrast(text, ground) >= 4.5 for text, ground in zip(theme.on_ramp, theme.ramp, strict=True))


def test_a_colour_that_returns_has_another_shape():
    looks = [(LIGHT.colour(i), SHAPES[i % len(SHAPES)]) for i in range(30)]
    assert len(set(looks)) == 30
