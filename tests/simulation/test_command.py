"""`python -m tests.simulation`."""

from __future__ import annotations

import os
import subprocess
import sys


def test_the_command_starts_itself_anew_with_a_fixed_order_of_sets() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--help"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--seed" in done.stdout
