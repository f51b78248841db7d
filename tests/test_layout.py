"""Beside every module of the package lies its test, by name."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "lengthen"


def homes(module: Path) -> list[Path]:
    """Where the test of a module may lie: under its own name, or under that of the whole it is a part of."""
    room = module.parent
    names = [module.stem] + [whole.stem for whole in room.glob("*.py") if module.stem.startswith(f"{whole.stem}_")]
    return [ROOT / "tests" / room.relative_to(SOURCE) / f"test_{name}.py" for name in names]


def test_every_module_has_its_test_beside_it_by_name():
    modules = [path for path in sorted(SOURCE.rglob("*.py")) if not path.name.startswith("__")]
    assert len(modules) > 200
    lonely = [str(path.relative_to(SOURCE)) for path in modules if not any(map(Path.exists, homes(path)))]
    assert not lonely, lonely
