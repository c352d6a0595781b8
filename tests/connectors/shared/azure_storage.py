"""A real server of Azure's blob protocol for tests: Azurite, Microsoft's own emulator, from npm, on a loopback port."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

from azure.storage.blob.aio import BlobServiceClient

from tests.servers import CACHE, Unavailable, _die_with_parent, free_ports

VERSION = "3.37.0"  # earlier ones ignore startFrom in listings
_NODE = "22"  # which this version needs
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Account and key of every Azurite (https://learn.microsoft.com/azure/storage/common/storage-use-azurite)."""

_PACKAGE = CACHE / f"azurite-{VERSION}"
_START = 60.0


@dataclass
class BlobServer:
    """A server that runs."""

    endpoint: str
    name = "azurite"
    _numbers: Iterator[int] = field(default_factory=count, repr=False)
    _container: str | None = field(default=None, repr=False)

    @property
    def connection_string(self) -> str:
        endpoint = f"BlobEndpoint={self.endpoint}/{ACCOUNT}"
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{endpoint};"

    @property
    def settings(self) -> dict[str, Any]:
        """Keywords for `Settings.load`."""
        return {"az_endpoint": f"{self.endpoint}/{ACCOUNT}", "az_account_key": KEY}

    async def new_url(self) -> str:
        """URL of an empty place in a container that all share."""
        if self._container is None:
            self._container = await self.new_container()
        return f"az://{ACCOUNT}/{self._container}/{next(self._numbers)}"

    async def new_container(self) -> str:
        """Name of a container that is new and empty."""
        container = f"container-{next(self._numbers)}"
        async with self.client() as client:
            await client.create_container(container)
        return container

    def client(self) -> BlobServiceClient:
        """Azure's own client."""
        return BlobServiceClient.from_connection_string(self.connection_string)


@contextmanager
def azurite(folder: Path) -> Iterator[BlobServer]:
    """A server that runs until the block ends. Raises `Unavailable` where npm is missing."""
    _fetch()
    [port] = free_ports(1)
    modules = _PACKAGE / "node_modules"
    command = [str(modules / ".bin/node"), str(modules / "azurite/dist/src/blob/main.js"), "--inMemoryPersistence"]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--skipApiVersionCheck", "--disableTelemetry"]
    command += ["--silent"]
    with (folder / "azurite.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 (one call of prctl)
        )
    try:
        server = BlobServer(f"http://127.0.0.1:{port}")
        _wait_until_ready(server, process, folder / "azurite.log")
        yield server
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(server: BlobServer, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START
    while True:
        try:
            urllib.request.urlopen(f"{server.endpoint}/{ACCOUNT}", timeout=5)
        except HTTPError:
            return  # it answers: without a signature the request is refused
        except (URLError, OSError):
            pass
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(log.read_text()[-2000:])
        time.sleep(0.1)


def _fetch() -> None:
    """The package, once per machine."""
    if shutil.which("npm") is None:
        raise Unavailable("Azurite needs npm, which is not on PATH")
    if _PACKAGE.exists():
        return
    fetched = CACHE / f"azurite-{os.getpid()}"
    fetched.mkdir(parents=True)
    install = ["npm", "install", "--no-audit", "--no-fund", f"node@{_NODE}", f"azurite@{VERSION}"]
    done = subprocess.run(install, cwd=fetched, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"npm cannot fetch Azurite {VERSION}: {done.stderr[-300:]}")
    with suppress(OSError):
        fetched.rename(_PACKAGE)
