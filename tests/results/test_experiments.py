"""What is trained and judged in one go: the demonstration and the studies: every kind keeps its JSON form."""

import pytest

from lengthen.results import experiments
from tests.results.json_form import keeps_its_json_form, kinds_in


@pytest.mark.parametrize("kind", kinds_in(experiments))
def test_json_form(kind, tmp_path):
    keeps_its_json_form(kind, tmp_path)
