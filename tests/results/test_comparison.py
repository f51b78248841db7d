"""Runs held against one another on the same sequences: every kind keeps its JSON form."""

import pytest

from lengthen.results import comparison
from tests.results.json_form import keeps_its_json_form, kinds_in


@pytest.mark.parametrize("kind", kinds_in(comparison))
def test_json_form(kind, tmp_path):
    keeps_its_json_form(kind, tmp_path)
