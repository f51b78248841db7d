"""Finished cells on disk: what is there is not run again, what is half written is left out, and costs are kept."""

import json

import pytest

from lengthen.errors import InputError, RunError
from lengthen.results import Cell
from lengthen.tasks.cells import CellFile
from lengthen.tasks.shared_prefixes import Cost


def cell(task="passkey", length=600, depth=0.5):
    return Cell(task, length, depth, 3, 0.5, [0.1, 0.9], "exact", 600.0, 0.75)


def test_cells_are_found_again_with_what_they_cost_together(tmp_path):
    path = tmp_path / "cells.jsonl"
    file = CellFile(path, {"seed": 0})
    file.add([cell(depth=0.0), cell(depth=1.0)], Cost(1200, 800))
    file.add([cell("copying", depth=None)], Cost(600, 600))
    again = CellFile(path, {"seed": 0}, resume=True)
    assert again.get("passkey", 600, 1.0) == cell(depth=1.0) and again.get("copying", 600, None) is not None
    assert again.get("passkey", 600, 0.5) is None and again.get("passkey", 700, 1.0) is None
    assert again.cost([cell(depth=1.0)]) == Cost(1200, 800)  # of both, which were run together
    assert again.cost([cell(depth=0.0), cell(depth=1.0), cell("copying", depth=None)]) == Cost(1800, 1400)


def test_a_line_half_written_is_left_out_and_mended(tmp_path):
    path = tmp_path / "cells.jsonl"
    CellFile(path, {"seed": 0}).add([cell()], Cost(1, 1))
    whole = path.read_text()
    path.write_text(whole + '{"cost": {"tok')
    again = CellFile(path, {"seed": 0}, resume=True)
    assert path.read_text() == whole and again.get("passkey", 600, 0.5) == cell()
    again.add([cell(length=700)], Cost(2, 2))
    assert json.loads(path.read_text().splitlines()[2])["cost"] == {"tokens": 2, "processed": 2}


def test_other_settings_are_refused_by_name_and_begun_anew_without_resuming(tmp_path):
    path = tmp_path / "cells.jsonl"
    CellFile(path, {"seed": 0, "n": 3}).add([cell()], Cost(1, 1))
    with pytest.raises(InputError, match=r"was of other settings \(data, seed\); give the same ones"):
        CellFile(path, {"seed": 1, "n": 3, "data": "x"}, resume=True)
    assert CellFile(path, {"seed": 1}).get("passkey", 600, 0.5) is None


def test_without_a_file_cells_are_kept_in_memory_alone():
    file = CellFile(None, {}, resume=True)
    file.add([cell()], Cost(5, 4))
    assert file.get("passkey", 600, 0.5) == cell() and file.cost([cell()]) == Cost(5, 4)


def test_a_file_that_cannot_be_written_is_a_failed_run(tmp_path):
    file = CellFile(tmp_path / "cells.jsonl", {})
    (tmp_path / "cells.jsonl").unlink()
    (tmp_path / "cells.jsonl").mkdir()
    with pytest.raises(RunError, match=r"^The cells cannot be written to .*; choose another --out\.$"):
        file.add([cell()], Cost(1, 1))
