"""The audio example shows what it says: a failure past the training length, and its repair."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "audio_regression.py"


def test_it_fails_and_is_repaired():
    """On three seeds: before 3 to 6 times the reset baseline, the control no better, state passing well below it."""
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "state carried: True" in done.stdout and "streamed to position 2048" in done.stdout
    line = re.compile(r"^(before|zero|state-passing): far ([\d.]+), reset ([\d.]+)\. (Fails|No failure)", re.MULTILINE)
    found = {name: (float(far), float(reset), verdict) for name, far, reset, verdict in line.findall(done.stdout)}
    reset = found["before"][1]
    assert found["before"][2] == found["zero"][2] == "Fails" and found["state-passing"][2] == "No failure"
    assert min(found["before"][0], found["zero"][0]) > 2 * reset and found["state-passing"][0] < 0.9 * reset
