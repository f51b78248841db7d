"""Compiled functions of one test must not count against the recompilations allowed to the next."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh_compiler(request: pytest.FixtureRequest) -> Iterator[None]:
    if "compiles" in request.node.name:
        torch.compiler.reset()
    yield
