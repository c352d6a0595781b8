"""The HTTP double as a child of this process. Its engine is installed once per machine: 535 MB, some 20 s."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import URLError

import clickhouse_connect

from tests.servers import CACHE, Unavailable, _die_with_parent, free_ports

_VERSION = "4.4.0"
_PLACE = CACHE / f"chdb-{_VERSION}"
_START = 60.0


class ClickHouse:
    """It listens on loopback, always at the same port, and keeps its data in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"clickhouse://127.0.0.1:{self.port}"

    def client(self) -> Any:
        return clickhouse_connect.get_client(
            host="127.0.0.1", port=self.port, compress=False, autogenerate_session_id=False
        )

    def query(self, sql: str) -> Any:
        client = self.client()
        try:
            return client.query(sql).result_rows
        finally:
            client.close()

    def command(self, sql: str) -> None:
        client = self.client()
        try:
            client.command(sql)
        finally:
            client.close()

    def lose(self, count: int) -> None:
        """The answers of the next inserts are lost."""
        urllib.request.urlopen(f"http://127.0.0.1:{self.port}/lose?count={count}", timeout=10).close()

    def start(self) -> None:
        double = Path(__file__).with_name("double.py")
        line = [_engine(), str(double), str(self.port), str(self._folder / "data")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                line, stdout=log, stderr=log, cwd=self._folder, preexec_fn=_die_with_parent  # noqa: PLW1509
            )  # fmt: skip
        until = time.monotonic() + _START
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ping", timeout=2).close()
                return
            except (URLError, OSError):
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((self._folder / "log").read_text()[-2000:]) from None
                time.sleep(0.05)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def clickhouse() -> Iterator[ClickHouse]:
    """A server that runs.

    Raises:
        Unavailable: it cannot be had here.
    """
    with TemporaryDirectory(prefix="actorproc-clickhouse-") as folder:
        server = ClickHouse(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()


def _engine() -> str:
    """The Python with chdb."""
    python = _PLACE / "bin" / "python"
    if not (_PLACE / "complete").exists():
        uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
        if uv is None:
            raise Unavailable("ClickHouse: install uv, which installs its engine")
        making = CACHE / f"chdb-{os.getpid()}"
        for line in (
            ["venv", "-q", str(making)],
            ["pip", "install", "-q", "--python", str(making), f"chdb=={_VERSION}"],
        ):
            done = subprocess.run([uv, *line], capture_output=True, text=True, check=False)
            if done.returncode:
                shutil.rmtree(making, ignore_errors=True)
                raise Unavailable(f"ClickHouse: chdb {_VERSION} cannot be installed: {done.stderr.strip()[-500:]}")
        (making / "complete").touch()
        if not _PLACE.exists():
            making.replace(_PLACE)  # whole or not at all: another run may be installing it too
    return str(python)
