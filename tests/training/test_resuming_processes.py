"""A run of two processes, of which one or both were killed, ends when resumed exactly as one that never stopped."""

import os
import random
import signal
import time

import pytest
from accelerate.state import AcceleratorState

from lengthen import FittedNoise, Mixture, StatePassing
from tests.training.launching import environments
from tests.training.test_resuming import assert_same, remains, start_child, train


def together(work, seconds=None, killed=None, event=None):
    """Does the work in two forked processes: (exit codes, events of each).

    Both are killed after so many seconds, or one at its n-th file event, and the other one second later, as launchers do.
    """

    def as_process(environment):
        os.environ.update(environment)
        AcceleratorState._reset_state(reset_partial_state=True)  # the parent's, of one process
        work()

    children = [
        start_child(lambda e=e: as_process(e), event if rank == killed else None)
        for rank, e in enumerate(environments())
    ]
    processes = [process for process, _ in children]
    ends = time.monotonic() + (seconds if seconds is not None else 600)
    while any(process.is_alive() for process in processes) and time.monotonic() < ends:
        if any(process.exitcode for process in processes):
            ends = min(ends, time.monotonic() + 1)
        time.sleep(0.02)
    for process in processes:
        process.kill()
        process.join()
    return [process.exitcode for process in processes], [events.value for _, events in children]


def kill_and_resume(out, whole, plays, seed):
    """Kills rank 0, then rank 1, at a random file event, then both at a random moment; compares what the run ends with."""

    def run(folder):
        def make():  # states that are passed and moments that the processes fit together
            return Mixture([(StatePassing(zero_fraction=0), 0.5), (FittedNoise(), 0.5)])

        return lambda: train(folder, plays[0], make, resume=True, steps=12, save_steps=3)

    began = time.monotonic()
    codes, events = together(run(whole))
    seconds = time.monotonic() - began
    assert codes == [0, 0]
    generator, died = random.Random(seed), []
    for rank in (0, 1):
        codes, _ = together(run(out), killed=rank, event=generator.randrange(1, events[rank]))
        died += codes
    died += together(run(out), seconds=generator.uniform(0.1, seconds))[0]
    assert -signal.SIGKILL in died
    assert together(run(out))[0] == [0, 0]
    assert_same(remains(out), remains(whole))


def test_three_kills_change_nothing(tmp_path, plays):
    kill_and_resume(tmp_path / "parts", tmp_path / "whole", plays, seed=0)


@pytest.mark.acceptance
@pytest.mark.parametrize("seed", range(1, 6))
def test_kills_at_any_moment_change_nothing(tmp_path, plays, seed):
    kill_and_resume(tmp_path / "parts", tmp_path / "whole", plays, seed)
