"""Servers of Cloud Storage's interface on loopback: our double, and fake-gcs-server, built from its Go source.

The second one is somebody else's idea of the service, and knows what it answers less well: see docs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from tests.servers import CACHE, Unavailable, free_ports, running

_FAKE_VERSION = "v1.56.1"
_FAKE = CACHE / f"fake-gcs-server-{_FAKE_VERSION}" / "fake-gcs-server"
_ROOT = Path(__file__).parents[3]


@dataclass
class GcsServer:
    """A server that runs."""

    name: str
    endpoint: str
    _numbers: Iterator[int] = field(default_factory=count, repr=False)
    _bucket: str | None = field(default=None, repr=False)

    @property
    def settings(self) -> dict[str, Any]:
        """Keywords for `Settings.load`."""
        return {"gs_endpoint": self.endpoint, "gs_anonymous": True}

    async def new_url(self) -> str:
        """URL of an empty place in a bucket that all share."""
        if self._bucket is None:
            self._bucket = await self.new_bucket()
        return f"gs://{self._bucket}/{next(self._numbers)}"

    async def new_bucket(self) -> str:
        bucket = f"bucket-{next(self._numbers)}"
        await self.ask("POST", "/storage/v1/b?project=p", {"name": bucket})
        return bucket

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Something that only tests ask."""
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.request(method, self.endpoint + path, json=body) as answer,
        ):
            return await answer.json() if answer.status == 200 else None


@contextmanager
def double(folder: Path, writes_per_second: float | None = None) -> Iterator[GcsServer]:
    """The double in a process of its own."""

    def command() -> tuple[list[str], str, str]:
        [port] = free_ports(1)
        module = [sys.executable, "-m", "tests.connectors.gcs.double", str(port)]
        pace = [] if writes_per_second is None else [str(writes_per_second)]
        return [*module, *pace], f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}/"

    with running("the double of Cloud Storage", command, folder, {"PYTHONPATH": str(_ROOT)}) as endpoint:
        yield GcsServer("gcs", endpoint)


@contextmanager
def fake_gcs_server(folder: Path) -> Iterator[GcsServer]:
    """fake-gcs-server, everything in memory."""
    binary = str(_fake_binary())

    def command() -> tuple[list[str], str, str]:
        [port] = free_ports(1)
        address = f"127.0.0.1:{port}"
        arguments = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
        return (
            [binary, *arguments, "-public-host", address],
            f"http://{address}",
            f"http://{address}/_internal/healthcheck",
        )

    with running("fake-gcs-server", command, folder, {}) as endpoint:
        yield GcsServer("fake_gcs", endpoint)


def _fake_binary() -> Path:
    """The binary, built once per machine from the source of a fixed version."""
    if not _FAKE.exists():
        go = shutil.which("go")
        if go is None:
            raise Unavailable("fake-gcs-server is source-only: install Go to have it built")
        _FAKE.parent.mkdir(parents=True, exist_ok=True)
        building = _FAKE.parent / f"building-{os.getpid()}"
        command = [go, "install", f"github.com/fsouza/fake-gcs-server@{_FAKE_VERSION}"]
        built = subprocess.run(
            command, env={**os.environ, "GOBIN": str(building)}, capture_output=True, text=True, check=False
        )
        if built.returncode:
            raise Unavailable(f"fake-gcs-server does not build here: {built.stderr.strip()[-500:]}")
        (building / "fake-gcs-server").replace(_FAKE)  # whole or not at all: another run may be building too
        building.rmdir()
    return _FAKE
