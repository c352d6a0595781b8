"""The change feed of Cosmos DB for NoSQL by REST, as far as its official client asks for it: ranges, splits, merges.

    with cosmos() as server:
        flights = server.create("shop", "flights", ranges=2)
        flights.write({"id": "1", "plane": "N14228"})       # the partition key is /plane
        source = CosmosSource(flights.url, server.options)

No emulator that can be had here has a change feed. This server follows the client's source and Microsoft's pages:
https://learn.microsoft.com/rest/api/cosmos-db/ and https://learn.microsoft.com/azure/cosmos-db/change-feed. Documents
are written by methods, and read by the client.

It does not reproduce: queries and writes by REST, request units (each request costs 1), quotas (see `throttle`),
several regions, consistency, and the time for which deletes are kept. How a merge of the service numbers the changes is
not known: here both halves keep their numbers, so two transactions may have the same one, and a page may end between
them. New changes come after all of them.
"""

from __future__ import annotations

import asyncio
import base64
import email.utils
import hashlib
import hmac
import threading
import time
import urllib.parse
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiohttp import web
from azure.cosmos.partition_key import PartitionKey  # its hash of a key

KEY = base64.b64encode(b"a key of the tests").decode()
_LAST = "FF"
_RESTS = "0" * 28
_HASHES = 0x4000  # hashes begin with 0000 to 3FFF


class Change(NamedTuple):
    """A version of a document. `document` is None where it was deleted."""

    lsn: int
    numbered_by: str  # id of the range
    time: float
    key: str  # hash of the partition key
    id: str
    document: dict[str, Any] | None
    previous: dict[str, Any] | None


@dataclass
class Range:
    """A physical range of hashes, from `low` on and below `high`."""

    id: str
    low: str
    high: str
    parents: list[str] = field(default_factory=list)
    lsn: int = 0
    log: list[Change] = field(default_factory=list)

    @property
    def described(self) -> dict[str, Any]:
        return {
            "id": self.id, "_rid": self.id, "minInclusive": self.low, "maxExclusive": self.high,
            "parents": self.parents, "status": "online", "lsn": self.lsn,
        }  # fmt: skip


class Container:
    """A container whose partition key is `/plane`."""

    def __init__(self, server: CosmosServer, database: str, name: str, ranges: int) -> None:
        self.rid = base64.b64encode(uuid.uuid4().bytes[:8]).decode().replace("/", "-")
        self.url = f"cosmos://127.0.0.1:{server.port}/{database}/{name}"
        self.name = name
        bounds = ["", *(_hash(_HASHES * number // ranges) for number in range(1, ranges)), _LAST]
        self.ranges = [Range(str(number), bounds[number], bounds[number + 1]) for number in range(ranges)]
        self._next = ranges
        self._documents: dict[tuple[str, str], dict[str, Any]] = {}
        self.lock = threading.RLock()  # tests write while another thread answers

    @property
    def described(self) -> dict[str, Any]:
        partition_key = {"paths": ["/plane"], "kind": "Hash", "version": 2}
        return {"id": self.name, "_rid": self.rid, "_self": f"dbs/d/colls/{self.rid}/", "partitionKey": partition_key}

    @property
    def documents(self) -> list[dict[str, Any]]:
        return list(self._documents.values())

    def range_of(self, plane: str) -> Range:
        key = _hashed(plane)
        return next(one for one in self.ranges if one.low <= key < one.high)

    def write(self, *documents: dict[str, Any], delete: bool = False) -> int:
        """Write, or delete, documents of one partition key in one transaction. Returns its number."""
        with self.lock:
            place = self.range_of(documents[0]["plane"])
            place.lsn += 1
            for document in documents:
                key = (_hashed(document["plane"]), document["id"])
                previous = self._documents.pop(key, None)
                current = None if delete else document | {"_ts": int(time.time()), "_etag": f'"{uuid.uuid4()}"'}
                if current is not None:
                    self._documents[key] = current
                place.log.append(Change(place.lsn, place.id, time.time(), *key, current, previous))
            return place.lsn

    def split(self, number: str, at: str | None = None) -> list[str]:
        """Split a range in the middle, or at a hash. Returns the ids of its children."""
        with self.lock:
            parent = self._take(number)
            low = int(parent.low[:4] or "0", 16)
            high = _HASHES if parent.high == _LAST else int(parent.high[:4], 16)
            middle = at or _hash((low + high) // 2)
            bounds = ((parent.low, middle), (middle, parent.high))
            return [self._add(low, high, [*parent.parents, parent.id], [parent]) for low, high in bounds]

    def merge(self, first: str, second: str) -> str:
        """Merge two neighbours. Returns the id of their child."""
        with self.lock:
            left, right = self._take(first), self._take(second)
            parents = [*left.parents, *right.parents, left.id, right.id]
            return self._add(left.low, right.high, list(dict.fromkeys(parents)), [left, right])

    def _take(self, number: str) -> Range:
        found = next(one for one in self.ranges if one.id == number)
        self.ranges.remove(found)
        return found

    def _add(self, low: str, high: str, ancestors: list[str], parents: list[Range]) -> str:
        child = Range(str(self._next), low, high, ancestors, max(parent.lsn for parent in parents))
        self._next += 1
        changes = [change for parent in parents for change in parent.log if low <= change.key < high]
        child.log = sorted(changes, key=lambda change: change.lsn)
        self.ranges = sorted([*self.ranges, child], key=lambda one: one.low)
        return child.id


def _hash(first: int) -> str:
    return f"{first:04X}{_RESTS}"


def _hashed(plane: str) -> str:
    return str(PartitionKey._get_hashed_partition_key_string([plane], "Hash", 2))


class CosmosServer:
    """The server, on a thread of its own. Its methods are for the tests' thread."""

    def __init__(self) -> None:
        self.key = KEY
        self.port = 0
        self.requests: deque[tuple[str, Mapping[str, str]]] = deque(maxlen=10_000)
        """Path and headers of each request."""
        self._containers: dict[str, Container] = {}
        self._refusals: deque[web.Response] = deque()
        self._ready, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="cosmos", daemon=True)

    @property
    def options(self) -> dict[str, str | int | float | bool]:
        """Of the source."""
        return {"endpoint": f"http://127.0.0.1:{self.port}/", "key": self.key}

    def create(self, database: str, name: str, ranges: int = 1) -> Container:
        """A container. One of the same name is deleted."""
        container = self._containers[f"{database}/{name}"] = Container(self, database, name, ranges)
        return container

    def delete(self, database: str, name: str) -> None:
        del self._containers[f"{database}/{name}"]

    def throttle(self, requests: int, milliseconds: int) -> None:
        """Refuse the next reads of documents with 429."""
        for _ in range(requests):
            refusal = _failed(429, "Request rate is large.", 3200)
            refusal.headers["x-ms-retry-after-ms"] = str(milliseconds)
            self._refusals.append(refusal)

    def fail(self, requests: int, status: int, detail: int = 0) -> None:
        """Refuse the next reads of documents with this status."""
        self._refusals.extend(_failed(status, "refused", detail) for _ in range(requests))

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(10)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(10)

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        while not self._stopped.is_set():
            await asyncio.sleep(0.05)
        await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        self.requests.append((request.path, dict(request.headers)))
        parts = [part for part in request.path.split("/") if part]
        if not self._is_signed(request, parts):
            return _failed(401, "The input authorization token can't serve the request.")
        match parts:
            case []:
                return self._account(request)
            case ["dbs", database, "colls", name, *rest]:
                container = self._containers.get(f"{database}/{name}")
                if container is None:
                    return _failed(404, "Resource Not Found.", 1003)
                with container.lock:
                    return self._container(request, container, rest)
        return _failed(404, "Resource Not Found.")

    def _is_signed(self, request: web.Request, parts: list[str]) -> bool:
        """Whether the request is signed by our key.

        https://learn.microsoft.com/rest/api/cosmos-db/access-control-on-cosmosdb-resources
        """
        kind = parts[-1] if len(parts) % 2 else (parts[-2] if parts else "")
        link = "/".join(parts[:-1] if len(parts) % 2 else parts)
        text = f"{request.method}\n{kind}\n".lower() + f"{link}\n{request.headers.get('x-ms-date', '').lower()}\n\n"
        signature = hmac.new(base64.b64decode(self.key), text.encode(), hashlib.sha256).digest()
        expected = f"type=master&ver=1.0&sig={base64.b64encode(signature).decode()}"
        return urllib.parse.unquote(request.headers.get("authorization", "")) == expected

    def _account(self, request: web.Request) -> web.Response:
        places = [{"name": "here", "databaseAccountEndpoint": f"http://{request.host}/"}]
        return _answer({
            "id": "tests", "_rid": "tests", "_self": "", "writableLocations": places, "readableLocations": places,
            "enableMultipleWriteLocations": False, "userConsistencyPolicy": {"defaultConsistencyLevel": "Session"},
            "queryEngineConfiguration": "{}",
        })  # fmt: skip

    def _container(self, request: web.Request, container: Container, rest: list[str]) -> web.Response:
        with container.lock:  # no answer in the middle of a split
            match rest:
                case []:
                    return _answer(container.described)
                case ["pkranges"]:
                    return _ranges(request, container)
                case ["docs"]:
                    return self._refusals.popleft() if self._refusals else _documents(request, container)
        return _failed(404, "Resource Not Found.")


def _ranges(request: web.Request, container: Container) -> web.Response:
    """The ranges: all of them, then 304, which the client waits for."""
    tag = f'"{max(int(one.id) for one in container.ranges)}"'
    if request.headers.get("If-None-Match") == tag:
        return _answer(None, 304, etag=tag)
    known = int((request.headers.get("If-None-Match") or "-1").strip('"'))
    ranges = [one.described for one in container.ranges if int(one.id) > known]
    return _answer({"_rid": container.rid, "PartitionKeyRanges": ranges, "_count": len(ranges)}, etag=tag)


def _documents(request: web.Request, container: Container) -> web.Response:
    headers = request.headers
    rid = headers.get("x-ms-cosmos-intended-collection-rid")
    if rid not in (None, container.rid):
        return _failed(400, "The container was created again.", 1024)
    if "A-IM" not in headers:
        return _answer({"_rid": container.rid, "Documents": container.documents, "_count": len(container.documents)})
    number = headers.get("x-ms-documentdb-partitionkeyrangeid", "").rpartition(",")[2]
    place = next((one for one in container.ranges if one.id == number), None)
    if place is None:
        return _failed(410, "The requested resource is no longer available at the server.", 1002)
    return _feed(headers, container, place)


def _feed(headers: Mapping[str, str], container: Container, place: Range) -> web.Response:
    """A page of the feed: whole transactions, at most as many documents as asked for, but at least one transaction."""
    is_full = headers["A-IM"].lower() == "full-fidelity feed"
    after = headers.get("If-None-Match")
    if after is None and is_full and "If-Modified-Since" not in headers:
        return _failed(400, "Full fidelity change feed cannot start from the beginning.")
    found = [change for change in place.log if _wants(headers, place, change)]
    if not is_full:
        latest = {(change.key, change.id): change.lsn for change in place.log}
        found = [change for change in found if change.document and latest[change.key, change.id] == change.lsn]
    most = int(headers.get("x-ms-max-item-count", "100"))
    page = found[: most if most > 0 else None]
    page += [change for change in found[len(page) :] if change[:2] == page[-1][:2]]
    upto = page[-1].lsn if len(page) < len(found) else place.lsn
    more: dict[str, Any] = {"etag": f'"{upto}"', "x-ms-session-token": f"{place.id}:-1#{place.lsn}"}
    if not page:
        return _answer(None, 304, **more)
    documents = [_version(change) if is_full else _latest(change) for change in page]
    return _answer({"_rid": container.rid, "Documents": documents, "_count": len(documents)}, **more)


def _wants(headers: Mapping[str, str], place: Range, change: Change) -> bool:
    after, since = headers.get("If-None-Match"), headers.get("If-Modified-Since")
    lsn = place.lsn if after == "*" else int((after or "0").strip('"'))
    time = email.utils.parsedate_to_datetime(since).timestamp() if since else 0
    low, high = headers.get("x-ms-start-epk", ""), headers.get("x-ms-end-epk", _LAST)
    return change.lsn > lsn and change.time >= time and low <= change.key < high


def _latest(change: Change) -> dict[str, Any]:
    return (change.document or {}) | {"_lsn": change.lsn}


def _version(change: Change) -> dict[str, Any]:
    kind = "delete" if change.document is None else "replace" if change.previous else "create"
    about = {"lsn": change.lsn, "crts": int(change.time), "operationType": kind, "previousImageLSN": 0}
    if kind != "delete":
        return {"current": change.document, "metadata": about}
    more = {"id": change.id, "timeToLiveExpired": False}
    return {"current": {}, "previous": change.previous, "metadata": about | more}


def _answer(body: Any, status: int = 200, **headers: str) -> web.Response:
    common = {
        "x-ms-activity-id": str(uuid.uuid4()), "x-ms-request-charge": "1", "Date": email.utils.formatdate(usegmt=True)
    }  # fmt: skip
    if body is None:
        return web.Response(status=status, headers=common | headers)
    return web.json_response(body, status=status, headers=common | headers)


def _failed(status: int, text: str, detail: int = 0) -> web.Response:
    more = {"x-ms-substatus": str(detail)} if detail else {}
    return _answer({"code": str(status), "message": text}, status, **more)


@contextmanager
def cosmos() -> Iterator[CosmosServer]:
    """A server on a free port of 127.0.0.1."""
    server = CosmosServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()
