"""What a training run did, and what one will take: every kind keeps its JSON form."""

import pytest

from lengthen.results import training
from tests.results.json_form import keeps_its_json_form, kinds_in


@pytest.mark.parametrize("kind", kinds_in(training))
def test_json_form(kind, tmp_path):
    keeps_its_json_form(kind, tmp_path)
