"""Spark's daemon, which starts a Python process per task, without its tracebacks at ends that are none of failure.

Spark closes the socket of a Python process that has had nothing to do for a minute. Through a Unix socket (`session`) the
process notices while it writes its last words, and Spark's daemon prints a traceback, of each process, after each minute.
"""

from __future__ import annotations

import os
import socket

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """A task's process, until Spark closes its socket; its exit code."""
    try:
        return int(_worker(sock, authenticated))
    except BrokenPipeError:
        return 1  # as with a socket that is closed a moment earlier: nobody is there to be told


if __name__ == "__main__":
    os.environ["PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"] = "1"  # some of Spark's callers let it print and go on
    daemon.worker = worker
    daemon.manager()
