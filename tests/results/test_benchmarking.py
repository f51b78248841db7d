"""How fast the recurrences and layers are beside their peers: every kind keeps its JSON form."""

import pytest

from lengthen.results import benchmarking
from tests.results.json_form import keeps_its_json_form, kinds_in


@pytest.mark.parametrize("kind", kinds_in(benchmarking))
def test_json_form(kind, tmp_path):
    keeps_its_json_form(kind, tmp_path)
