"""What docs/why-models-break.md says of its toy, the toy shows."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "examples" / "why_models_break.py"


@pytest.fixture(scope="module")
def toy():
    spec = importlib.util.spec_from_file_location("why_models_break", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_readout_breaks_after_its_coverage_ends_and_passed_states_end_nowhere(toy):
    seen, reading, missed = toy.coverage()
    assert reading[0] < seen["zero"] < reading[2] and seen["four hops"] < reading[4] and reading[-1] < seen["passed on"]
    within, far = ({name: errors[at] for name, errors in missed.items()} for at in (0, -1))
    assert within["zero"] == min(within.values()) and within["passed on"] < 3 * within["zero"]
    assert far["passed on"] < 0.3 < 1 < far["four hops"] < min(far["zero"], far["one hop"])


def test_independent_noise_falls_behind_as_units_grow_in_number(toy):
    ratio = {units: found["independent noise"] / found["passed on"] for units, found in toy.noise().items()}
    assert ratio[1] < 1 and ratio[2] < 1.2 and all(ratio[units] > 1.5 for units in (8, 16, 32))


def test_a_state_that_forgets_is_flat_too_and_misses_what_lies_far_back(toy):
    found = toy.memory()
    assert all(max(errors) < 1.4 * min(errors) for errors in found.values())
    assert min(found["forgets within T"]) > 2 * max(found["remembers"])
