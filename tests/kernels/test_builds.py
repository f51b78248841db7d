"""The package builds with and without a compiler, works without its extension, which is clean under the sanitizers."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "bash", "env", "uname", "rm", "cp", "mv", "cat", "ls", "sed", "grep", "mkdir", "dirname", "basename")

WITHOUT_TRACES = ("-p", "no:cacheprovider", "-m", "not acceptance")

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


def python_with(package: Path, place: Path) -> str:
    """An interpreter that finds `lengthen` in `package` (never as it is installed), and everything else as this one."""
    venv.create(place)
    (site_packages,) = place.glob("lib/python*/site-packages")
    (site_packages / "paths.pth").write_text(f"{package}\n{sysconfig.get_path('purelib')}\n")
    python = str(place / "bin" / "python")
    assert run(python, "-c", "import lengthen; print(lengthen.__file__)", PYTHONPATH="").startswith(str(package))
    return python


def copy_without_extension(place: Path) -> None:
    ignored = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(ROOT / "src" / "lengthen", place / "lengthen", ignore=ignored)


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
    copy_without_extension(place)
    run("cmake", "--install", str(build), "--prefix", str(place))
    libraries = [
        subprocess.run(["c++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so", "libstdc++.so.6")
    ]
    log = run(
        *(python_with(place, tmp_path / "environment"), "-m", "pytest", "-s", *WITHOUT_TRACES),
        *("-k", "every_element or refused or agrees_with_the_definition or strided or large_outputs", "tests/kernels"),
        LD_PRELOAD=" ".join(libraries),
        PYTHONPATH="",
        ASAN_OPTIONS="detect_leaks=0",  # Python keeps what it was given until the end
        UBSAN_OPTIONS="print_stacktrace=1",
    )
    assert "passed" in log
    assert "runtime error" not in log
    assert "AddressSanitizer" not in log


def test_the_whole_suite_passes_on_the_portable_forms(tmp_path: Path) -> None:
    copy_without_extension(tmp_path / "package")
    python = python_with(tmp_path / "package", tmp_path / "environment")
    log = run(python, "-m", "pytest", *WITHOUT_TRACES, "tests", PYTHONPATH="")
    assert "passed" in log
    assert "the extension is not built" in log  # what is about the extension alone, and no more
