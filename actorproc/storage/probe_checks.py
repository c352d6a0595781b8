"""The properties of a store on which safety rests, and a test for each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple, TypeVar

import anyio

from actorproc.errors import ConditionFailed, StoreError, StoreRefused, StoreUnavailable
from actorproc.runtime.tasks import gather
from actorproc.storage.backend import Entry, NotModified, Stored
from actorproc.storage.store import Store

T = TypeVar("T")

RACERS = 8


class Broken(Exception):
    """The property does not hold; the text names the store's answer."""


class Bench:
    """Fresh keys for one attempt at a check, and requests to the backend, each with a deadline.

    Conditional writes are sent once, since `Store` would hide faults; again only if the store says that it gets too
    many (Cloud Storage takes one a second for one object). Other requests are repeated while the store is unavailable.
    A write whose reply was lost may then be applied between two later steps and make a correct store look broken. So
    once a write was repeated (`doubtful`), only a property that held proves something.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._durable, self.store = store, store.fleeting()
        self.prefix = prefix
        self._numbers = count()
        self._keys: list[str] = []
        self._deadline = store.clock.monotonic() + store.limits.patience
        self.doubtful = False

    def key(self) -> str:
        return self.adopt(f"{self.prefix}{next(self._numbers):03d}")

    def adopt(self, key: str) -> str:
        """`key`, which is deleted in the end."""
        self._keys.append(key)
        return key

    async def put(self, key: str, body: bytes) -> str:
        return await self._repeat(self.store, "put", lambda: self.store.backend.put(key, body))

    async def put_durably(self, key: str, body: bytes) -> str:
        return await self._repeat(self._durable, "put", lambda: self._durable.backend.put(key, body))

    async def create(self, key: str, body: bytes) -> str:
        return await self._taken("put_if_absent", lambda: self.store.backend.put_if_absent(key, body))

    async def swap(self, key: str, body: bytes, tag: str) -> str:
        return await self._taken("put_if_match", lambda: self.store.backend.put_if_match(key, body, tag))

    async def _taken(self, verb: str, send: Callable[[], Awaitable[str]]) -> str:
        """Send until it is not throttled."""
        for attempt in count(1):
            try:
                return await self.store.once(verb, send)
            except StoreUnavailable as error:
                delay = self.store.limits.backoff.delay(attempt, self.store.clock.random)
                if not error.throttled or self.store.clock.monotonic() + delay >= self._deadline:
                    raise
            await self.store.clock.sleep(delay)
        raise AssertionError("count() has no end")

    async def accepted(self, key: str, body: bytes, write: Awaitable[str]) -> str:
        """The tag of a conditional write of `body` without a competitor."""
        try:
            return await write
        except ConditionFailed:
            stored = await self.get(key)
            if stored is not None and stored.body == body:
                raise self.sent_twice() from None
            raise Broken(f"the write was refused although nobody else had written; {_shown(stored)} is there") from None

    def sent_twice(self) -> StoreUnavailable:
        """A proxy repeated our write, and the copy was refused: this proves nothing."""
        return StoreUnavailable(
            f"{self.store.url}: a write was refused although it was applied: something on the way sends requests twice"
        )

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        return await self._repeat(self.store, "get", lambda: self.store.backend.get(key, unless=unless, tail=tail))

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Sequence[Entry]:
        listing = await self._repeat(self.store, "list", lambda: self.store.backend.list(prefix, after, limit))
        return listing.entries

    async def delete(self, key: str) -> None:
        await self._repeat(self.store, "delete", lambda: self.store.backend.delete(key))

    async def _repeat(self, store: Store, verb: str, send: Callable[[], Awaitable[T]]) -> T:
        for attempt in count(1):
            try:
                return await store.once(verb, send)
            except StoreUnavailable:
                self.doubtful |= verb in ("put", "delete")
                delay = store.limits.backoff.delay(attempt, store.clock.random)
                if store.clock.monotonic() + delay >= self._deadline:
                    raise
            await store.clock.sleep(delay)
        raise AssertionError("count() has no end")

    async def expect(self, key: str, body: bytes | None, when: str) -> None:
        stored = await self.get(key)
        if (stored.body if stored else None) != body:
            raise Broken(f"{when}, {_shown(stored)} was read instead of {_quoted(body)}")

    async def clean(self) -> None:
        async def delete(key: str) -> None:
            with suppress(StoreError):
                await self.store.delete(key)

        await gather(self._keys, delete)


class Property(NamedTuple):
    """The result for one property. `done`: the test; `found`: its result; `meaning`: the consequence of a failure."""

    name: str
    held: bool
    done: str
    found: str
    meaning: str


class Check(NamedTuple):
    name: str
    done: str
    meaning: str
    run: Callable[[Bench], Awaitable[str]]
    """Returns the finding; raises Broken if the property does not hold."""

    def result(self, *, held: bool, found: str) -> Property:
        return Property(self.name, held, self.done, found, self.meaning)


async def _read_your_write(bench: Bench) -> str:
    key = bench.key()
    first = await bench.put_durably(key, b"one")
    await bench.expect(key, b"one", "after the first write")
    second = await bench.put(key, b"two")
    await bench.expect(key, b"two", "after the second write")
    stored = await bench.get(key)
    if first == second or stored is None or stored.tag != second:
        raise Broken(f"the writes answered the tags {first} and {second}, the read {stored and stored.tag}")
    return "each read showed the write before it, with its tag"


async def _create_if_absent(bench: Bench) -> str:
    key = bench.key()
    await bench.accepted(key, b"first", bench.create(key, b"first"))
    try:
        await bench.create(key, b"second")
    except ConditionFailed:
        await bench.expect(key, b"first", "although the second create was refused")
        return "the second create was refused, the first body is kept"
    stored = await bench.get(key)
    raise Broken(f"the second create was accepted, {_shown(stored)} is there now")


async def _match(bench: Bench) -> str:
    key = bench.key()
    tag = await bench.accepted(key, b"old", bench.create(key, b"old"))
    await bench.accepted(key, b"new", bench.swap(key, b"new", tag))
    await bench.expect(key, b"new", "after the accepted write")
    return "the write was accepted"


async def _stale_match(bench: Bench) -> str:
    key = bench.key()
    stale = await bench.put(key, b"old")
    await bench.put(key, b"new")
    try:
        await bench.swap(key, b"stale", stale)
    except ConditionFailed:
        await bench.expect(key, b"new", "although the stale write was refused")
        return "the stale write was refused, the newer body is kept"
    raise Broken("the stale write was accepted")


async def _match_on_missing(bench: Bench) -> str:
    key = bench.key()
    tag = await bench.put(key, b"gone")
    await bench.delete(key)
    try:
        await bench.swap(key, b"ghost", tag)
    except ConditionFailed:
        await bench.expect(key, None, "although the write was refused")
        return "the write was refused, nothing was created"
    raise Broken("the write was accepted")


async def _create_race(bench: Bench) -> str:
    key = bench.key()
    return await _race(bench, key, lambda body: bench.create(key, body))


async def _match_race(bench: Bench) -> str:
    key = bench.key()
    tag = await bench.put(key, b"start")
    return await _race(bench, key, lambda body: bench.swap(key, body, tag))


async def _race(bench: Bench, key: str, write: Callable[[bytes], Awaitable[str]]) -> str:
    bodies = [b"racer %d" % number for number in range(RACERS)]
    won: list[bytes] = []
    unknown: dict[bytes, StoreUnavailable] = {}
    refused: list[StoreRefused] = []

    async def run(body: bytes) -> None:
        try:
            await write(body)
            won.append(body)
        except ConditionFailed:
            pass
        except StoreUnavailable as error:
            unknown[body] = error
        except StoreRefused as error:
            refused.append(error)

    async with anyio.create_task_group() as tasks:
        for body in bodies:
            tasks.start_soon(run, body)
    stored = await bench.get(key)
    if len(won) > 1:
        raise Broken(f"{len(won)} of them were told that they had won; {_shown(stored)} is there")
    if refused:
        raise refused[0]
    if won and (stored is None or stored.body != won[0]):
        raise Broken(f"{_quoted(won[0])} was told that it had won, but {_shown(stored)} is there")
    if not won and not unknown:
        if stored is not None and stored.body in bodies:
            raise bench.sent_twice()
        raise Broken(f"all were refused; {_shown(stored)} is there")
    if not won and (stored is None or stored.body not in unknown):
        raise next(iter(unknown.values()))
    return "exactly one won, and its body is there"


async def _listing(bench: Bench) -> str:
    folder = f"{bench.key()}/"
    keys = [folder + name for name in ("a", "b", "c", "d-1", "d/1")]  # in key order: '-' sorts before '/'
    tags = {}
    for key in reversed(keys):
        bench.adopt(key)
        tags[key] = await bench.put(key, key.encode())
    whole = await bench.list(folder)
    _expect_keys("all", whole, keys)
    wrong = [e.key for e in whole if e.tag != tags[e.key] or e.size != len(e.key.encode())]
    if wrong:
        raise Broken(f"the listing's tag or size of {wrong} is not that of the write")
    _expect_keys("two after 'a'", await bench.list(folder, keys[0], 2), keys[1:3])
    _expect_keys("those in 'd/'", await bench.list(folder + "d/"), keys[4:])
    return "all were listed, in order, with their tags and sizes; 'after' and 'limit' were kept"


def _expect_keys(what: str, entries: Sequence[Entry], keys: list[str]) -> None:
    found = [entry.key for entry in entries]
    if found != keys:
        raise Broken(f"asked for {what}, the listing was {found} instead of {keys}")


async def _partial_reads(bench: Bench) -> str:
    key = bench.key()
    tag = await bench.put(key, b"head and tail")
    stored = await bench.get(key, tail=4)
    if stored != Stored(b"tail", tag, 13):
        raise Broken(f"the last 4 of 13 bytes were {_shown(stored)}, of {stored and stored.size}")
    try:
        await bench.get(key, unless=tag)
    except NotModified:
        return "the end was read alone; an unchanged object was not sent again"
    raise Broken("an unchanged object was sent again")


async def _delete(bench: Bench) -> str:
    key = bench.key()
    await bench.put(key, b"short-lived")
    await bench.delete(key)
    await bench.expect(key, None, "after the delete")
    if await bench.list(key):
        raise Broken("it was still listed")
    await bench.delete(key)
    await bench.accepted(key, b"again", bench.create(key, b"again"))
    return "it was gone from reads and listings; its key could be used again"


def _shown(stored: Stored | None) -> str:
    return _quoted(stored.body if stored else None)


def _quoted(body: bytes | None) -> str:
    return "nothing" if body is None else repr(body[:40].decode(errors="replace"))


_TWO_OWNERS = "two hosts could both believe that they own a partition, and their output would repeat or vanish"
CHECKS = [
    Check(
        "read your write",
        "an object was written twice, and read after each",
        "a host would decide on what is no longer true",
        _read_your_write,
    ),
    Check(
        "create if absent",
        "a key was created twice with If-None-Match: *",
        _TWO_OWNERS,
        _create_if_absent,
    ),
    Check(
        "match",
        "an object was replaced with If-Match and its current tag",
        "no checkpoint could ever be written",
        _match,
    ),
    Check("stale match", "an object was replaced with If-Match and an earlier tag", _TWO_OWNERS, _stale_match),
    Check("match on a missing key", "a deleted object was replaced with If-Match", _TWO_OWNERS, _match_on_missing),
    Check("race of creates", f"{RACERS} writers created one key at the same time", _TWO_OWNERS, _create_race),
    Check("race of matches", f"{RACERS} writers replaced one version at the same time", _TWO_OWNERS, _match_race),
    Check(
        "listing",
        "five objects were written and listed",
        "hosts would not see each other, and files would be missed",
        _listing,
    ),
    Check(
        "partial and conditional reads",
        "an object was read by its end alone, and again unless it had changed",
        "every poll would transfer everything",
        _partial_reads,
    ),
    Check(
        "delete", "an object was deleted, read, listed and created again", "what was removed would come back", _delete
    ),
]
