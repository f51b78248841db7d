"""Two processes of one run, started as a launcher does it, but each left to end in its own way."""

from __future__ import annotations

import os
import socket
import subprocess


def environments(processes: int = 2) -> list[dict[str, str]]:
    """The environment of each process: rank, world size, where to meet; offline, one thread."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": port, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return [{**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


def start(command: list[str], folder, processes: int = 2) -> list[subprocess.Popen]:
    """Starts the command once for each process, with pipes for what they say."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen(command, cwd=folder, env=env, **pipes) for env in environments(processes)]


def finish(processes: list[subprocess.Popen], seconds: float = 600) -> list[tuple[int, str, str]]:
    """(exit code, standard output, standard error) of each process."""
    try:
        said = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *words) for process, words in zip(processes, said)]
