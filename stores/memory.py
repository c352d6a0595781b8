"""Objects in the memory of this process: for tests, simulations and first steps. Gone when the process ends."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from hashlib import blake2b
from itertools import count
from threading import Lock
from typing import Any, Self

from anyio.lowlevel import checkpoint

from actorproc.config.settings import Settings
from actorproc.errors import ConditionFailed
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.storage.backend import Backend, Entry, Listing, NotModified, Stored


class _Space:
    """Objects that share a name, their keys in order. The lock: event loops of several threads may share it."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[Stored, float]] = {}  # with the time of the last write
        self.keys: list[str] = []
        self.tags = count(1)
        self.lock = Lock()


_named: dict[str, _Space] = {}


class MemoryStore(Backend):
    """Objects in a dictionary. Backends of the same `name` in this process share them; without a name they are private.

    Args:
        content_tags: equal bodies have equal tags, as on S3; otherwise no two writes have the same.
    """

    def __init__(self, name: str | None = None, *, clock: Clock = SYSTEM, content_tags: bool = False) -> None:
        self.url = f"memory://{name or ''}"
        self._clock = clock
        self._content_tags = content_tags
        self._space = _Space() if name is None else _named.setdefault(name, _Space())

    @classmethod
    def of_url(cls, url: str, options: Any, *, settings: Settings, clock: Clock) -> Self:
        return cls(url.partition("://")[2], clock=clock)

    @property
    def route(self) -> None:
        return None

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        await checkpoint()
        stored, _ = self._space.objects.get(key, (None, 0.0))
        if stored is not None and stored.tag == unless:
            raise NotModified
        return stored if stored is None or tail is None else Stored(stored.body[-tail:], stored.tag, stored.size)

    async def put(self, key: str, body: bytes) -> str:
        await checkpoint()
        with self._space.lock:
            return self._write(key, body)

    async def put_if_absent(self, key: str, body: bytes) -> str:
        await checkpoint()
        with self._space.lock:
            if key in self._space.objects:
                raise ConditionFailed(f"{self.url}: {key!r} exists")
            return self._write(key, body)

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        await checkpoint()
        with self._space.lock:
            stored, _ = self._space.objects.get(key, (None, 0.0))
            if stored is None or stored.tag != tag:
                raise ConditionFailed(f"{self.url}: {key!r} is {stored and stored.tag}, not {tag}")
            return self._write(key, body)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        await checkpoint()
        entries: list[Entry] = []
        with self._space.lock:
            keys, objects = self._space.keys, self._space.objects
            start = max(bisect_left(keys, prefix), bisect_right(keys, after))
            for index in range(start, len(keys)):
                key = keys[index]
                if not key.startswith(prefix) or len(entries) == limit:
                    break
                stored, modified = objects[key]
                entries.append(Entry(key, stored.tag, stored.size, modified))
        return Listing(entries, self._clock.wall())

    async def delete(self, key: str) -> None:
        await checkpoint()
        with self._space.lock:
            if self._space.objects.pop(key, None) is not None:
                del self._space.keys[bisect_left(self._space.keys, key)]

    def _write(self, key: str, body: bytes) -> str:
        if key not in self._space.objects:
            insort(self._space.keys, key)
        tag = blake2b(body, digest_size=16).hexdigest() if self._content_tags else str(next(self._space.tags))
        self._space.objects[key] = Stored(bytes(body), tag, len(body)), self._clock.wall()
        return tag
