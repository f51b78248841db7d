"""A model under methods that train nothing, beside post-training: every kind keeps its JSON form."""

import pytest

from lengthen.results import training_free
from tests.results.json_form import keeps_its_json_form, kinds_in


@pytest.mark.parametrize("kind", kinds_in(training_free))
def test_json_form(kind, tmp_path):
    keeps_its_json_form(kind, tmp_path)
