"""How far a model generalises, and why it stops: every kind keeps its JSON form."""

import pytest

from lengthen.results import diagnosis
from tests.results.json_form import keeps_its_json_form, kinds_in


@pytest.mark.parametrize("kind", kinds_in(diagnosis))
def test_json_form(kind, tmp_path):
    keeps_its_json_form(kind, tmp_path)
