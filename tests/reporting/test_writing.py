"""A report is written whole beside its results, the same each time, or refused in a sentence that names the place."""

import errno
import os
import re

import pytest

from lengthen.errors import InputError, RunError
from lengthen.reporting import write_report
from lengthen.reporting.palette import LIGHT
from tests.reporting.example_results import comparison, diagnosis, study, training

FIGURES = [
    "certificate",
    "loss-by-position",
    "remembrance",
    "state-drift",
    "state-statistics",
    "forgetting",
    "patching",
    "training-loss",
    "rates-in-context",
    "rates-far",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    for result in (comparison(), diagnosis("other"), training(), study()):
        result.save(folder / "results" / f"{type(result).__name__}.json")
    return write_report(folder).parent


@pytest.fixture(scope="module")
def page(run):
    return (run / "report.html").read_text(encoding="utf-8")


def test_every_figure_lies_beside_the_page(run, page):
    assert sorted(p.name for p in (run / "figures").iterdir()) == sorted(
        f"{n}.{k}" for n in FIGURES for k in ("png", "svg")
    )
    for name in FIGURES:
        png, svg = (run / "figures" / f"{name}.png").read_bytes(), (run / "figures" / f"{name}.svg").read_text()
        width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
        assert png[1:4] == b"PNG" and width > 1000 and height > 250 and len(png) > 10_000
        assert svg.startswith("<svg") and "<script" not in svg and svg.count("<path") > 10
        assert f'id="figure-{name}"' in page and f'href="figures/{name}.svg"' in page


def test_writing_again_gives_the_same_page(run, page):
    assert write_report(run).read_text(encoding="utf-8") == page


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    diagnosis().save(tmp_path / "results" / "a.json")
    (tmp_path / "figures").write_text("in the way")
    with pytest.raises(InputError, match=r"figures.*cannot be written"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_full_disk_is_a_failed_run_and_the_results_stay(tmp_path, monkeypatch):
    diagnosis().save(tmp_path / "results" / "a.json")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(RunError, match=r"disk is full; make room"):
        write_report(tmp_path)
    assert (tmp_path / "results" / "a.json").exists() and not list((tmp_path / "figures").iterdir())


def test_a_file_is_drawn_on_white_at_two_pixels_a_point(run):
    svg = (run / "figures" / "patching.svg").read_text()
    width, height = (float(re.search(rf'<svg[^>]* {side}="([0-9.]+)"', svg).group(1)) for side in ("width", "height"))
    png = (run / "figures" / "patching.png").read_bytes()
    assert [int.from_bytes(png[at : at + 4], "big") for at in (16, 20)] == pytest.approx([2 * width, 2 * height], abs=1)
    assert LIGHT.ground == "#ffffff" and re.search(r'<rect width="\d+" height="\d+" fill="#ffffff"', svg)
