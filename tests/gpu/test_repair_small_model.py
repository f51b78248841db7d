"""The GPU script that needs no GPU at its tiny size, so that it cannot rot."""

import subprocess
import sys
from pathlib import Path


def test_breaks_and_repairs_a_tiny_model_on_a_cpu():
    script = Path(__file__).with_name("repair_small_model.py")
    done = subprocess.run([sys.executable, str(script), "--tiny"], capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed:") == 4
