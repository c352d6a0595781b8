"""The probe accepts every store of ours. It names the broken property of a faulty store."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from actorproc.errors import (
    ConditionFailed,
    CredentialsExpired,
    StoreRefused,
    StoreUnavailable,
    StoreUnsafe,
    UsageError,
)
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import Clock
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.storage.backend import Listing, Stored
from actorproc.storage.probe import ensure_safe, probe
from actorproc.storage.probe_checks import RACERS
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores.folder import FolderStore
from actorproc.stores.memory import MemoryStore

NAMES = [
    "read your write",
    "create if absent",
    "match",
    "stale match",
    "match on a missing key",
    "race of creates",
    "race of matches",
    "listing",
    "partial and conditional reads",
    "delete",
]


async def test_our_stores_keep_every_property(store: Store) -> None:
    await store.put("probe/mine", b"body")
    properties = await probe(store, "probe/")
    assert [(p.name, p.held) for p in properties] == [(name, True) for name in NAMES]
    assert all(p.done and p.found and p.meaning for p in properties)
    await ensure_safe(store, "probe/")
    assert [e.key for e in (await store.list("")).entries] == ["probe/mine"]


class LastWriterWins(MemoryStore):
    """Checks, is interrupted, then writes: like a service without a lock around both."""

    async def put_if_absent(self, key: str, body: bytes) -> str:
        if await self.get(key) is not None:
            raise ConditionFailed(key)
        return await self.put(key, body)

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        stored = await self.get(key)
        if stored is None or stored.tag != tag:
            raise ConditionFailed(key)
        return await self.put(key, body)


class CreatesOnMatch(MemoryStore):
    """As MinIO did before 2025-09-06."""

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        return await (super().put_if_match(key, body, tag) if await self.get(key) else self.put(key, body))


class NeverMatches(MemoryStore):
    """As radosgw 16 does."""

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        raise ConditionFailed(key)


class ContentTags(MemoryStore):
    """A store whose tags are equal for different versions."""

    async def put(self, key: str, body: bytes) -> str:
        await super().put(key, body)
        return "same"


class ListsLate(MemoryStore):
    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        listing = await super().list(prefix, after, limit)
        return Listing(listing.entries[:-1], listing.now)


class IgnoresAfter(MemoryStore):
    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        return await super().list(prefix, "", limit)


class SendsAll(MemoryStore):
    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        return await super().get(key)


class KeepsDeleted(MemoryStore):
    async def delete(self, key: str) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (LastWriterWins, {"race of creates", "race of matches"}),
        (CreatesOnMatch, {"match on a missing key"}),
        (NeverMatches, {"match", "race of matches"}),
        (ContentTags, {"read your write", "race of matches", "listing", "partial and conditional reads"}),
        (ListsLate, {"listing"}),
        (IgnoresAfter, {"listing"}),
        (SendsAll, {"partial and conditional reads"}),
        (KeepsDeleted, {"match on a missing key", "delete"}),
    ],
)
async def test_the_probe_names_each_broken_property(kind: type[MemoryStore], broken: set[str]) -> None:
    store = Store(kind())
    properties = await probe(store, "probe/")
    assert {p.name for p in properties if not p.held} == broken
    first = next(p for p in properties if not p.held)
    with pytest.raises(StoreUnsafe) as caught:
        await ensure_safe(store, "probe/")
    text = str(caught.value)
    assert text.startswith("memory:// is not safe to use")
    assert first.name in text
    assert first.done in text
    assert first.meaning in text


async def test_all_racers_that_won_are_counted() -> None:
    (race,) = [p for p in await probe(Store(LastWriterWins()), "probe/") if p.name == "race of creates"]
    assert race.found.startswith(f"{RACERS} of them were told that they had won")


class Away(MemoryStore):
    async def put_if_absent(self, key: str, body: bytes) -> str:
        raise StoreUnavailable("503")


async def test_a_store_that_is_away_is_not_called_unsafe() -> None:
    store = Store(Away(), limits=StoreLimits(patience=0.02, backoff=Backoff(0.001, 0.001)))
    with pytest.raises(StoreUnavailable, match="503"):
        await ensure_safe(store, "probe/")
    assert (await store.list("")).entries == []


class Forbidden(MemoryStore):
    async def delete(self, key: str) -> None:
        raise StoreRefused("AccessDenied")


class Days(Clock):
    ahead = 0.0

    def wall(self) -> float:
        return super().wall() + self.ahead


async def test_a_folder_whose_files_cannot_be_synced_is_not_called_safe(tmp_path: Path) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    files = FolderStore(tmp_path / "store")
    files._sync = refuse
    with pytest.raises(StoreUnavailable, match=os.strerror(errno.ENOTSUP)):
        await ensure_safe(Store(files, limits=StoreLimits(patience=0)), "probe/")


async def test_a_start_deletes_probes_that_were_killed_a_day_ago() -> None:
    clock = Days()
    store = Store(MemoryStore(clock=clock), clock=clock)
    await store.put("probe/killed/000", b"")
    await store.put("output/old", b"")
    clock.ahead = 86_000.0
    await ensure_safe(store, "probe/")
    assert len((await store.list("probe/")).entries) == 1, "it may run still"
    await store.put("probe/running/000", b"")
    clock.ahead = 87_000.0
    await ensure_safe(store, "probe/")
    assert [entry.key for entry in (await store.list("")).entries] == ["output/old", "probe/running/000"]


async def test_a_right_that_is_missing_is_not_called_unsafe() -> None:
    with pytest.raises(StoreRefused, match="AccessDenied"):
        await ensure_safe(Store(Forbidden()), "probe/")


async def test_a_race_without_the_right_to_write_is_refused() -> None:
    class ReadOnly(MemoryStore):
        async def put(self, key: str, body: bytes) -> str:
            raise StoreRefused("AccessDenied")

        async def put_if_absent(self, key: str, body: bytes) -> str:
            raise StoreRefused("AccessDenied")

    with pytest.raises(StoreRefused, match="AccessDenied"):
        await ensure_safe(Store(ReadOnly()), "probe/")


async def test_a_store_that_ignores_one_condition_is_unsafe() -> None:
    class OldService(MemoryStore):
        async def put_if_absent(self, key: str, body: bytes) -> str:
            return await self.put(key, body)

        async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
            raise StoreRefused("NotImplemented")

    with pytest.raises(StoreUnsafe, match=r"'create if absent'.*the second create was accepted"):
        await ensure_safe(Store(OldService()), "probe/")
    found = {p.name: p.found for p in await probe(Store(OldService()), "probe/") if not p.held}
    assert found["race of creates"].startswith(f"{RACERS} of them were told that they had won")
    assert found["race of matches"] == "it could not be tried: NotImplemented"


class Refusing(MemoryStore):
    """Refuses writes, or every request."""

    def __init__(self, error: StoreRefused, verb: str) -> None:
        super().__init__()
        setattr(self, verb, self._refuse)
        self._error = error

    async def _refuse(self, *_: object, **__: object) -> str:
        raise self._error


@pytest.mark.parametrize("verb", ["open", "put"])
async def test_a_refusal_at_the_first_contact_is_a_usage_error(
    verb: str,
) -> None:
    async def contact(error: StoreRefused) -> None:
        async with Store(Refusing(error, verb)) as store:
            await ensure_safe(store, "probe/")

    with pytest.raises(UsageError, match="no right") as caught:
        await contact(StoreRefused("no right"))
    assert isinstance(caught.value, StoreRefused)
    with pytest.raises(StoreRefused, match="renew them") as expired:
        await contact(CredentialsExpired("renew them"))
    assert not isinstance(expired.value, UsageError)


class OneASecond(MemoryStore):
    """Takes one write a second for one object, as Cloud Storage does."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._clock, self._written = clock, dict[str, float]()

    async def _throttle(self, key: str) -> None:
        now = self._clock.monotonic()
        if now - self._written.get(key, -1) < 1:
            refused = StoreUnavailable("429")
            refused.throttled = True
            raise refused
        self._written[key] = now

    async def put(self, key: str, body: bytes) -> str:
        await self._throttle(key)
        return await super().put(key, body)

    async def put_if_absent(self, key: str, body: bytes) -> str:
        await self._throttle(key)
        return await super().put_if_absent(key, body)

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        await self._throttle(key)
        return await super().put_if_match(key, body, tag)


def test_a_store_that_throttles_writes_to_one_object_is_found_safe() -> None:
    async def main() -> None:
        clock = VirtualClock("host")
        store = Store(OneASecond(clock), clock=clock)
        began = clock.monotonic()
        assert all(p.held for p in await probe(store, "probe/"))
        assert clock.monotonic() - began < 30
        assert store.failures["throttled"] > 0

    run(main())


class SentTwice(MemoryStore):
    """Behind a proxy that repeats every third conditional write, and passes on the last reply."""

    writes = 0

    async def put_if_absent(self, key: str, body: bytes) -> str:
        return await self._perhaps_twice(partial(super().put_if_absent, key, body))

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        return await self._perhaps_twice(partial(super().put_if_match, key, body, tag))

    async def _perhaps_twice(self, write: Callable[[], Awaitable[str]]) -> str:
        self.writes += 1
        tag = await write()
        return await write() if self.writes % 3 == 0 else tag


async def test_a_proxy_that_sometimes_sends_twice_is_not_unsafe() -> None:
    limits = StoreLimits(backoff=Backoff(0.001, 0.001))
    for _ in range(20):
        store = Store(SentTwice(), limits=limits)
        assert all(p.held for p in await probe(store, "probe/"))


async def test_a_proxy_that_always_sends_twice_is_named() -> None:
    class Always(SentTwice):
        async def _perhaps_twice(self, write: Callable[[], Awaitable[str]]) -> str:
            await write()
            return await write()

    store = Store(Always(), limits=StoreLimits(patience=0.05, backoff=Backoff(0.001, 0.001)))
    with pytest.raises(StoreUnavailable, match="sends requests twice"):
        await probe(store, "probe/")
