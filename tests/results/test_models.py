"""What is found of models as such: parity checks, supported classes, conversions: every kind keeps its JSON form."""

import pytest

from lengthen.results import models
from tests.results.json_form import keeps_its_json_form, kinds_in


@pytest.mark.parametrize("kind", kinds_in(models))
def test_json_form(kind, tmp_path):
    keeps_its_json_form(kind, tmp_path)
