"""docs/new-family.md does what it says: its blocks run as they stand, one after the other."""

import re
from pathlib import Path

import pytest
import torch

from lengthen.errors import InputError
from lengthen.models import families, register_family, wrap

PAGE = (Path(__file__).parents[1] / "docs" / "new-family.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def tables():
    """The tables of families, as they were once the test is over."""
    tables = families.KINDS, families.FAMILY_OF, families._KIND_OF_CLASS
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before):
        table.clear()
        table.update(entries)


def test_the_page_s_blocks_run_and_are_short(tables):
    torch.manual_seed(0)
    namespace = {"__name__": "new_family"}
    own, library_layer, file, row, test = BLOCKS
    exec(own + library_layer, namespace)
    with pytest.raises(InputError, match=r"1 \(MinGRU\).*its forward takes cache"):
        wrap(torch.nn.Sequential(torch.nn.Linear(40, 8), namespace["MinGRU"](8)))
    exec(file + row + test, namespace)
    namespace["test_mingru"]()
    assert len((file + row + test).splitlines()) < 80
    with pytest.raises(InputError, match="belongs to a family already"):
        register_family(namespace["FAMILY"])
