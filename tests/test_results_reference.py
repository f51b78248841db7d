"""The page of the results' fields is what lengthen.results holds."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from lengthen import results

PROGRAM = Path(__file__).parents[1] / "docs" / "results_reference.py"


@pytest.fixture(scope="module")
def reference() -> Any:
    spec = importlib.util.spec_from_file_location("results_reference", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_holds_every_result_as_it_is(reference: Any) -> None:
    written = reference.PAGE.read_text(encoding="utf-8")
    assert written == reference.page(), "run `python docs/results_reference.py`"
    assert {"## Diagnosis", "## Certificate", "## Evaluation"} <= set(written.splitlines())


def test_every_kind_that_the_page_speaks_of_has_a_section(reference: Any) -> None:
    by_hand = reference.PAGE.read_text(encoding="utf-8").partition(reference.BEGIN)[0]
    linked = {part.partition("]")[0] for part in by_hand.split("[")[1:]}
    assert {"CheckResult", "Diagnosis", "Conversion"} <= linked <= {kind.__name__ for kind in reference.kinds()}


def test_a_field_is_told_as_it_stands_in_the_file(reference: Any) -> None:
    @dataclasses.dataclass(frozen=True)
    class Sample(results.Result):
        """What it is."""

        curve: list[list[float]]
        by_name: dict[str, results.Bucket]
        steps: int | None = None

    assert reference.section(Sample).splitlines() == [
        "## Sample",
        "",
        "What it is.",
        "",
        "| field | JSON |",
        "| --- | --- |",
        "| `curve` | array of array of number |",
        "| `by_name` | object: any name to [Bucket](#bucket) |",
        "| `steps` | integer or null |",
    ]


def test_a_type_that_has_no_form_in_json_is_refused(reference: Any) -> None:
    with pytest.raises(TypeError, match="has no form in JSON here"):
        reference.json_type(set[int])
