"""What the package says of itself: its dependencies are those it imports, and it is told alike wherever it is told."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

PEERS = {"mambapy", "rwkv"}
"""What `lengthen bench` compares with where it is installed."""


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def lower_end(requirement: str) -> str:
    found = re.search(r">=([\d.]+)", requirement)
    assert found is not None, f"{requirement} has no lower end"
    return found[1]


def imported() -> set[str]:
    """The top-level names of all modules that src/ imports, at the top of a file or inside a function."""
    names: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add(str(node.module).partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"lengthen"}


def test_what_is_imported_is_a_dependency_or_an_extra() -> None:
    extras = [r for name in ("fla", "lm-eval") for r in PROJECT["optional-dependencies"][name]]
    declared = {name_of(requirement) for requirement in [*PROJECT["dependencies"], *extras]}
    distributions = packages_distributions()
    undeclared = {
        module
        for module in imported() - PEERS
        if not {name_of(d) for d in distributions.get(module, [module])} & declared
    }
    assert not undeclared


def test_the_oldest_releases_are_the_lower_ends() -> None:
    lines = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    oldest = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert oldest == {name_of(r): lower_end(r) for r in PROJECT["dependencies"]}


def test_the_citation_is_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {PROJECT['version']}\n" in citation and f"\nlicense: {PROJECT['license']}\n" in citation


def test_the_package_page_links_nothing_beside_it_and_its_commands_exist() -> None:
    page = (ROOT / PROJECT["readme"]).read_text(encoding="utf-8")
    assert [link for link in re.findall(r"\]\(([^)]*)\)", page) if not link.startswith("https://")] == []
    shown = re.findall(r"^lengthen ([\w-]+)", page, flags=re.MULTILINE)
    told = subprocess.run([sys.executable, "-m", "lengthen", "--help"], capture_output=True, text=True, check=True)
    assert shown and set(shown) <= set(told.stdout.split())


@pytest.mark.acceptance
def test_the_sdist_holds_what_the_repository_holds(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("this is no git repository")
    subprocess.run([sys.executable, "-m", "build", "--sdist", "--outdir", str(tmp_path), str(ROOT)], check=True)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    present = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    assert held == present | {"PKG-INFO"}
    assert path.stat().st_size < 4e6  # the bundled plays are 1.5 MB of it


@pytest.mark.acceptance
def test_the_wheel_runs_the_demonstration_in_an_empty_environment_without_a_compiler(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("lengthen-*.whl")
    venv.create(tmp_path / "empty", with_pip=True)
    commands = tmp_path / "empty" / "bin"
    environment = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    environment |= {"PATH": str(commands), "OMP_NUM_THREADS": "1"}
    assert not any(shutil.which(name, path=str(commands)) for name in ("cc", "c++", "gcc", "g++", "clang", "cmake"))

    def ran(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    pip = (str(commands / "python"), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"))
    ran(*pip, "torch", "numpy")
    ran(*pip, "--only-binary", ":all:", str(wheel))
    ran(str(commands / "python"), "-c", "from lengthen.kernels import _compiled")
    assert "Mamba2" in ran(str(commands / "lengthen"), "families")
    told = ran(str(commands / "lengthen"), "demo", "--out", "demo-run")
    print(told)
    assert "Parity: passed" in told and (tmp_path / "demo-run" / "report.html").stat().st_size > 1e5
