"""The machine's clock."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own, which has one thread: forking any other is not safe.
FORKS = """
import os
from actorproc.clock import SYSTEM

for _ in range(3):
    if os.fork() == 0:
        os.write(1, SYSTEM.nonce().encode() + b"\\n")
        os._exit(0)
    os.wait()
print(SYSTEM.nonce())
"""


def test_processes_forked_after_the_import_draw_different_nonces() -> None:
    nonces = subprocess.run([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    assert len(nonces) == 4
    assert len(set(nonces)) == 4, "a fork repeats its parent's random numbers"
