"""The models of a family's tests: `build` and `build_first` for the classes and shapes that a test file names in CLASSES."""

import pytest

from tests.models.family_properties import builder


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    shapes = getattr(metafunc.module, "CLASSES", None)
    if shapes is None:
        return
    of = getattr(metafunc.module, "shape_builder", builder)  # a file may draw its models otherwise
    if "build" in metafunc.fixturenames:
        cases = [(name, title, options) for name, by in shapes.items() for title, options in by.items()]
        models = [pytest.param(of(name, options), id=f"{name}, {title}") for name, title, options in cases]
        metafunc.parametrize("build", models)
    if "build_first" in metafunc.fixturenames:
        models = [pytest.param(of(name, next(iter(by.values()))), id=name) for name, by in shapes.items()]
        metafunc.parametrize("build_first", models)
