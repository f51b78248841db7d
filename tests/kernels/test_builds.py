"""The package builds with and without a compiler, and its extension is clean under the sanitizers."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "bash", "env", "uname", "rm", "cp", "mv", "cat", "ls", "sed", "grep", "mkdir", "dirname", "basename")

pytestmark = pytest.mark.acceptance


def run(*command: str, **variables: str) -> str:
    result = subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment that holds pip and nothing else."""
    place = tmp_path_factory.mktemp("clean")
    venv.create(place, with_pip=True)
    return str(place / "bin" / "python")


def wheel_of(output: Path) -> tuple[str, list[str]]:
    (path,) = output.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        return path.name, wheel.namelist()


def test_a_wheel_holds_the_extension_and_no_sources(clean_python: str, tmp_path: Path) -> None:
    run(clean_python, "-m", "pip", "wheel", "--no-deps", "-w", str(tmp_path), ".", PYTHONPATH="")
    name, files = wheel_of(tmp_path)
    assert not name.endswith("none-any.whl")
    assert sum("lengthen/kernels/_compiled." in file for file in files) == 1
    assert not any("csrc" in file for file in files)


def test_without_a_compiler_the_wheel_is_pure_and_says_so_once(clean_python: str, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found:
            (tools / tool).symlink_to(found)
    log = run(
        *(clean_python, "-m", "pip", "wheel", "-v", "--no-deps", "-w", str(tmp_path), "."),
        PATH=str(tools),
        CC="",
        CXX="",
        PYTHONPATH="",
    )
    name, files = wheel_of(tmp_path)
    assert name.endswith("py3-none-any.whl")
    assert not any(file.endswith(".so") or "csrc" in file for file in files)
    assert log.count("built without its compiled kernels") == 1


def test_the_extension_is_clean_under_the_sanitizers(tmp_path: Path) -> None:
    build, place = tmp_path / "build", tmp_path / "package"
    ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
    run(
        *("cmake", "-S", ".", "-B", str(build), *ninja, "-DLENGTHEN_SANITIZE=ON"),
        f"-DPython_EXECUTABLE={sys.executable}",
    )
    run("cmake", "--build", str(build))
    shutil.copytree(ROOT / "src" / "lengthen", place / "lengthen", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    run("cmake", "--install", str(build), "--prefix", str(place))
    libraries = [
        subprocess.run(["c++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so", "libstdc++.so.6")
    ]
    log = run(
        *(sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-m", "not acceptance"),
        *("-k", "every_element or refused or agrees_with_the_definition or strided", "tests/kernels"),
        LD_PRELOAD=" ".join(libraries),
        PYTHONPATH=str(place),
        ASAN_OPTIONS="detect_leaks=0",  # Python keeps what it was given until the end
        UBSAN_OPTIONS="print_stacktrace=1",
    )
    assert "passed" in log
    assert "runtime error" not in log
    assert "AddressSanitizer" not in log
