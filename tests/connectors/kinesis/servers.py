"""Real servers of the protocols of Kinesis and DynamoDB for tests, from npm, on a loopback port.

    with kinesis_local(folder) as server:
        await server.create("flights", shards=2)
        source = KinesisSource(server.url("flights"), server.options)

kinesis-local does all that shards do; kinesalite takes many records; dynalite has the leases of other consumers. They
do not throttle, and accept any signature.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import anyio
from aiobotocore.session import AioSession
from aiohttp import web

from tests.servers import CACHE, Unavailable, _die_with_parent, free_ports

REGION = "us-east-1"
_START = 60.0
_PACKAGES = {"kinesis-local": "0.6.2", "kinesalite": "3.3.3", "dynalite": "3.2.2"}
_LOOPBACK = """
const net = require('net'), listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (...a) {
  if (a[0] && typeof a[0] === 'object') a[0] = { ...a[0], host: '127.0.0.1' };
  else if (typeof a[1] === 'string') a[1] = '127.0.0.1';
  else a.splice(1, 0, '127.0.0.1');
  return listen.apply(this, a);
};
"""
"""kinesis-local listens on all addresses, and has no setting for it."""
_CHANGES = ("CREATE_STREAM", "DELETE_STREAM", "SPLIT_SHARD", "MERGE_SHARDS")
_KINESALITE = "require('kinesalite')({createStreamMs:50,updateStreamMs:50,shardLimit:100}).listen(+PORT,'127.0.0.1')"
_DYNALITE = "require('dynalite')({createTableMs:0}).listen(+PORT,'127.0.0.1')"


@dataclass
class KinesisServer:
    """A server that runs."""

    port: int
    _session: AioSession = field(default_factory=AioSession, repr=False)

    @property
    def options(self) -> dict[str, Any]:
        """Options of a source."""
        return {"endpoint": f"http://127.0.0.1:{self.port}", "access_key": "key", "secret_key": "secret"}

    def url(self, stream: str) -> str:
        return f"kinesis://{REGION}/{stream}"

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:
        """AWS's client, for the administration of streams."""
        login = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        endpoint = f"http://127.0.0.1:{self.port}"
        async with self._session.create_client("kinesis", region_name=REGION, endpoint_url=endpoint, **login) as client:
            yield client

    async def create(self, stream: str, shards: int = 1) -> None:
        async with self.client() as client:
            await client.create_stream(StreamName=stream, ShardCount=shards)
            await _active(client, stream)

    async def put(self, stream: str, records: Sequence[tuple[str, bytes]]) -> None:
        """Append records: key and value."""
        async with self.client() as client:
            for first in range(0, len(records), 500):
                entries = [{"PartitionKey": key, "Data": value} for key, value in records[first : first + 500]]
                reply = await client.put_records(StreamName=stream, Records=entries)
                assert not reply["FailedRecordCount"]

    async def shards(self, stream: str) -> list[Mapping[str, Any]]:
        """All shards, the open ones in order of their hash keys at the end."""
        async with self.client() as client:
            found: list[Mapping[str, Any]] = (await client.list_shards(StreamName=stream))["Shards"]
        return sorted(found, key=lambda one: ("EndingSequenceNumber" not in one["SequenceNumberRange"], _low(one)))

    async def split(self, stream: str, shard: str) -> None:
        """Split a shard in the middle."""
        [found] = [one for one in await self.shards(stream) if one["ShardId"] == shard]
        middle = (_low(found) + int(found["HashKeyRange"]["EndingHashKey"])) // 2
        async with self.client() as client:
            await client.split_shard(StreamName=stream, ShardToSplit=shard, NewStartingHashKey=str(middle))
            await _active(client, stream)

    async def merge(self, stream: str, shard: str, neighbour: str) -> None:
        async with self.client() as client:
            await client.merge_shards(StreamName=stream, ShardToMerge=shard, AdjacentShardToMerge=neighbour)
            await _active(client, stream)


def _low(shard: Mapping[str, Any]) -> int:
    return int(shard["HashKeyRange"]["StartingHashKey"])


async def _active(client: Any, stream: str) -> None:
    with anyio.fail_after(30):
        while True:
            summary = (await client.describe_stream_summary(StreamName=stream))["StreamDescriptionSummary"]
            if summary["StreamStatus"] == "ACTIVE":
                return
            await anyio.sleep(0.02)


@dataclass
class Faults:
    """A proxy before a server, which answers some requests with an error.

    Attributes:
        errors: codes with which the next requests of an operation are answered, by the operation.
        largest: bytes that a record may have; kinesis-local has no limit but that of a shard in a second.
        halves: number of next PutRecords of which every other record is refused.
        asked: operations of all requests, in order.
    """

    server: KinesisServer
    errors: dict[str, list[str]] = field(default_factory=dict)
    largest: int = 2**20
    halves: int = 0
    asked: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def options(self) -> dict[str, Any]:
        return self.server.options | {"endpoint": f"http://127.0.0.1:{self.port}"}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Faults]:
        application = web.Application()
        application.router.add_post("/", self._answer)
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.port = runner.addresses[0][1]
            yield self
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        operation = request.headers["X-Amz-Target"].partition(".")[2]
        self.asked.append(operation)
        if errors := self.errors.get(operation):
            return web.json_response({"__type": errors.pop(0), "message": "injected"}, status=400)
        body = await request.read()
        if operation == "PutRecords" and any(self._is_large(entry) for entry in json.loads(body)["Records"]):
            return web.json_response({"__type": "ValidationException", "message": "too large"}, status=400)
        if operation == "PutRecords" and self.halves:
            self.halves -= 1
            return await self._half(request, json.loads(body))
        return await self._forwarded(request, body)

    def _is_large(self, entry: dict[str, str]) -> bool:
        return len(b64decode(entry["Data"])) > self.largest

    async def _forwarded(self, request: web.Request, body: bytes) -> web.Response:
        url = f"http://127.0.0.1:{self.server.port}/"
        headers = {name: value for name, value in request.headers.items() if name != "Content-Length"}
        async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as reply:
            kind = {"Content-Type": reply.headers["Content-Type"]}
            return web.Response(body=await reply.read(), status=reply.status, headers=kind)

    async def _half(self, request: web.Request, asked: dict[str, Any]) -> web.Response:
        """The answer of a service that takes the first, the third, and so on."""
        taken = asked | {"Records": asked["Records"][::2]}
        reply = await self._forwarded(request, json.dumps(taken).encode())
        answers = iter(json.loads(reply.body)["Records"])  # type: ignore[arg-type]
        refused = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "injected"}
        records = [refused if index % 2 else next(answers) for index in range(len(asked["Records"]))]
        return web.json_response({"FailedRecordCount": len(records) // 2, "Records": records})


@contextmanager
def kinesis_local(folder: Path) -> Iterator[KinesisServer]:
    """Closed shards, children and times as in AWS. Raises `Unavailable` where Node.js or npm is missing."""
    package = _fetched("kinesis-local")
    loopback = folder / "loopback.js"
    loopback.write_text(_LOOPBACK)
    plain, tls = free_ports(2)
    environment = {
        "KINESIS_MOCK_PLAIN_PORT": str(plain), "KINESIS_MOCK_TLS_PORT": str(tls), "LOG_LEVEL": "ERROR",
        "KINESIS_MOCK_CERT_PATH": str(package / "server.json"), "AWS_REGION": REGION, "SHARD_LIMIT": "1000",
        **{f"{change}_DURATION": "10ms" for change in _CHANGES},
    }  # fmt: skip
    command = ["node", "-r", str(loopback), str(package / "main.js")]
    with _running(command, environment, plain, folder / "kinesis-local.log") as server:
        yield server


@contextmanager
def kinesalite(folder: Path) -> Iterator[KinesisServer]:
    """Fast, without lists of children. Raises `Unavailable` where Node.js or npm is missing."""
    package = _fetched("kinesalite")
    [port] = free_ports(1)
    command = ["node", "-e", _KINESALITE.replace("PORT", str(port))]
    with _running(command, {"NODE_PATH": str(package.parent)}, port, folder / "kinesalite.log") as server:
        yield server


@contextmanager
def dynalite(folder: Path) -> Iterator[str]:
    """URL of a server of DynamoDB's protocol. Raises `Unavailable` where Node.js or npm is missing."""
    package = _fetched("dynalite")
    [port] = free_ports(1)
    command = ["node", "-e", _DYNALITE.replace("PORT", str(port))]
    with _running(command, {"NODE_PATH": str(package.parent)}, port, folder / "dynalite.log"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _running(command: Sequence[str], environment: Mapping[str, str], port: int, log: Path) -> Iterator[KinesisServer]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | environment,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 (one call of prctl)
        )  # fmt: skip
    try:
        end = time.monotonic() + _START
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(log.read_text(errors="replace")[-2000:])
            time.sleep(0.05)
        yield KinesisServer(port)
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _fetched(package: str) -> Path:
    """The folder of a package, fetched once per machine."""
    for command in ("node", "npm"):
        if shutil.which(command) is None:
            raise Unavailable(f"{package} needs {command}, which is not on PATH")
    name = f"{package}-{_PACKAGES[package]}"
    if not (CACHE / name).exists():
        fetching = CACHE / f"{name}-{os.getpid()}"
        fetching.mkdir(parents=True)
        install = ["npm", "install", "--no-audit", "--no-fund", f"{package}@{_PACKAGES[package]}"]
        done = subprocess.run(install, cwd=fetching, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"npm cannot fetch {name}: {done.stderr[-300:]}")
        with suppress(OSError):  # another run was first
            fetching.rename(CACHE / name)
        shutil.rmtree(fetching, ignore_errors=True)
    return CACHE / name / "node_modules" / package
