"""What a model answers in long-context tasks: every kind keeps its JSON form."""

import pytest

from lengthen.results import tasks
from tests.results.json_form import keeps_its_json_form, kinds_in


@pytest.mark.parametrize("kind", kinds_in(tasks))
def test_json_form(kind, tmp_path):
    keeps_its_json_form(kind, tmp_path)
