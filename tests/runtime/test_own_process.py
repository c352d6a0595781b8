"""What `set_up_process` changes, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

PROGRAM = """
import gc, pyarrow as pa
from actorproc.runtime.own_process import set_up_process
set_up_process()
print(pa.default_memory_pool().backend_name, len(gc.get_objects()) < gc.get_freeze_count())
"""


def outcome(**variables: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    run = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(run, env=environment | variables, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif("jemalloc" not in pa.supported_memory_backends(), reason="pyarrow has no jemalloc here")
def test_modules_are_frozen_and_arrow_uses_jemalloc() -> None:
    assert outcome() == ["jemalloc", "True"]


def test_the_users_allocator_is_kept() -> None:
    assert outcome(ARROW_DEFAULT_MEMORY_POOL="system") == ["system", "True"]
