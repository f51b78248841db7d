"""Jobs side by side: each is run once, progress counts them, and the first error ends it."""

import os

import pytest

from lengthen.studies.side_by_side import run_jobs, workers_for
from tests.studies.jobs import fail, write, write_late


@pytest.mark.parametrize("workers", [1, 2])
def test_each_job_is_run_once_on_one_thread_and_counted(workers, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # another process would take both
    told = []
    jobs = [(write, (tmp_path / str(i), f"job {i}")) for i in range(3)]
    run_jobs(jobs, workers, "write", lambda *now: told.append(now))
    assert told == [("write", 1, 3), ("write", 2, 3), ("write", 3, 3)]
    found = [(tmp_path / str(i)).read_text().split() for i in range(3)]
    assert [line[:2] for line in found] == [["job", str(i)] for i in range(3)]
    elsewhere = {line[2] for line in found} - {str(os.getpid())}
    assert len(elsewhere) == (0 if workers == 1 else len({line[2] for line in found}))
    assert workers == 1 or {line[3] for line in found} == {"1"}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_raised_as_it_is_and_ends_what_has_not_begun(workers, tmp_path):
    jobs = [(fail, (tmp_path / "first",)), *((write_late, (tmp_path / str(i),)) for i in range(20))]
    with pytest.raises(ValueError, match="first failed"):
        run_jobs(jobs, workers, "write", None)
    assert len(list(tmp_path.iterdir())) < 20


def test_nothing_to_do_is_done(tmp_path):
    run_jobs([], 2, "write", lambda *now: pytest.fail("told"))


def test_as_many_workers_as_asked_for_or_as_there_are_cpus():
    assert workers_for(3) == 3 and workers_for(None) == len(os.sched_getaffinity(0))
