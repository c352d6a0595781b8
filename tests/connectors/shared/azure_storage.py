"""A real server of Azure's blob protocol for tests: Azurite, Microsoft's own emulator, from npm, on a loopback port."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError, URLError

from tests.servers import CACHE, Unavailable, free_ports

VERSION = "3.35.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Account and key of every Azurite (https://learn.microsoft.com/azure/storage/common/storage-use-azurite)."""

_PACKAGE = CACHE / f"azurite-{VERSION}"
_START = 60.0


@dataclass
class BlobServer:
    """A server that runs."""

    endpoint: str

    @property
    def connection_string(self) -> str:
        endpoint = f"BlobEndpoint={self.endpoint}/{ACCOUNT}"
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{endpoint};"


@contextmanager
def azurite(folder: Path) -> Iterator[BlobServer]:
    """A server that runs until the block ends. Raises `Unavailable` where Node.js or npm is missing."""
    _fetch()
    [port] = free_ports(1)
    command = ["node", str(_PACKAGE / "node_modules/azurite/dist/src/blob/main.js"), "--location", str(folder)]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--skipApiVersionCheck", "--disableTelemetry"]
    with (folder / "azurite.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
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
    for command in ("node", "npm"):
        if shutil.which(command) is None:
            raise Unavailable(f"Azurite needs {command}, which is not on PATH")
    if _PACKAGE.exists():
        return
    fetched = CACHE / f"azurite-{os.getpid()}"
    fetched.mkdir(parents=True)
    install = ["npm", "install", "--no-audit", "--no-fund", f"azurite@{VERSION}"]
    done = subprocess.run(install, cwd=fetched, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"npm cannot fetch Azurite {VERSION}: {done.stderr[-300:]}")
    with suppress(OSError):
        fetched.rename(_PACKAGE)
