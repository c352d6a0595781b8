"""Spark's daemon as we start it: what it says when Spark lets go of a process. Without Java."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
import time

import pytest

TOLD = {
    "PYTHON_UNIX_DOMAIN_ENABLED": "true",
    "SPARK_REUSE_WORKER": "1",
}


@pytest.mark.parametrize("told", [{}, {"PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}])
@pytest.mark.parametrize(("module", "traceback"), [("pyspark.daemon", True), ("actorproc.spark.daemon", False)])
def test_a_process_that_spark_lets_go_ends_without_a_word(module: str, traceback: bool, told: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
        [sys.executable, "-m", module, "pyspark.worker"],
        env=os.environ | TOLD | told | {"PYTHON_WORKER_FACTORY_SOCK_DIR": folder},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as daemon:  # fmt: skip
        assert daemon.stdout is not None
        path = daemon.stdout.read(*struct.unpack("!i", daemon.stdout.read(4)))
        with socket.socket(socket.AF_UNIX) as java:
            java.connect(path)
            (process,) = struct.unpack("!i", java.recv(4, socket.MSG_WAITALL))
        while alive(process):
            time.sleep(0.01)
        _, said = daemon.communicate()
        assert os.listdir(folder) == []
    assert (b"BrokenPipeError" in said) == traceback, said.decode()
    assert traceback or not said, said.decode()


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
