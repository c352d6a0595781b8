"""The store contract: what a backend must do, and what is built once above every backend.

A backend is six verbs (`Backend`). `Store` adds what must be the same everywhere: a deadline for each request,
bounded concurrency, retries, request counts, and conditional writes whose outcome is known although replies get lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import anyio

from actorproc.errors import ConditionFailed, StoreRefused, StoreUnavailable, first_contact, locate
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger

T = TypeVar("T")
log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as it was read. `body` is its end only where a tail was asked for; `size` is always of the whole."""

    body: bytes
    tag: str
    size: int


class Entry(NamedTuple):
    """A line of a listing. `modified`: seconds since 1970 by the store's own clock."""

    key: str
    tag: str
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class Listing:
    """`entries` in key order; `now`: the store's own clock when it answered, so ages need no clock of ours."""

    entries: list[Entry]
    now: float


async def all_pages(
    ask: Callable[[int | None, str | None], Awaitable[tuple[Listing, str | None]]], limit: int | None
) -> Listing:
    """One listing of what `ask(limit, page)`, as `Backend.list_page`, answers."""
    entries: list[Entry] = []
    page: str | None = None
    while True:
        listing, page = await ask(None if limit is None else limit - len(entries), page)
        entries += listing.entries
        if page is None or len(entries) == limit:
            return Listing(sorted(entries), listing.now)


class NotModified(Exception):
    """The object still has the tag that the reader has. An answer, not an error."""


class Backend(ABC):
    """Six verbs over flat keys. Small and dumb: one try each, no retry, no knowledge of what is stored.

    Every method raises StoreUnavailable where the outcome is unknown or may change by trying again, and StoreRefused
    where it is final. A conditional write raises ConditionFailed where the store said that the condition does not
    hold; it must reach the store at most once per call. Reads see every write acknowledged before (strong consistency).
    """

    url: str
    """Where this backend keeps its objects, as the user would write it."""

    @abstractmethod
    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        """The object, or None. With `unless`, raises NotModified if its tag is still that.
        With `tail`, only its last `tail` bytes (all of it if shorter)."""

    @abstractmethod
    async def put(self, key: str, body: bytes) -> str:
        """Write unconditionally; durable on return. Returns the tag."""

    @abstractmethod
    async def put_if_absent(self, key: str, body: bytes) -> str:
        """Write if there is no such object. Returns the tag."""

    @abstractmethod
    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        """Write if the object is there and its tag is `tag`. Returns the new tag."""

    @abstractmethod
    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        """Objects whose key starts with `prefix` and sorts after `after` (a whole key); at most `limit` where given."""

    async def list_page(
        self, prefix: str, after: str = "", limit: int | None = None, page: str | None = None
    ) -> tuple[Listing, str | None]:
        """A part of `list`, and the `page` that asks for the next one; None if that was all. A backend that answers in pages
        gives them apart here, since each is a request with a deadline of its own."""
        return await self.list(prefix, after, limit), None

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Remove the object; nothing happens if it is not there."""

    def lane(self) -> Backend:
        """The same objects, by `LANE` requests at once that do not wait behind those under way here."""
        return self

    def fleeting(self) -> Backend:
        """The same, for objects that nobody misses after a power failure: writes need not be durable."""
        return self

    def above(self) -> Backend | None:
        """The place that this one lies in, over the same connection and to be read only; None: it lies in none."""
        return None

    async def open(self) -> None:
        """Connect. Raises StoreRefused if the place does not exist or may not be used."""

    async def close(self) -> None:
        """Let go of connections."""


SLOWEST = 2**20
"""Bytes a second at which a large object must come and go: its requests have so much more time than the others."""

LANE = 4
"""Requests under way at once in a lane of its own, beyond `StoreLimits.concurrency`."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """`timeout`: seconds for one request; `patience`: seconds over which it is tried again; what a large object takes at
    `SLOWEST` comes on top of both. `concurrency`: requests under way at once."""

    timeout: float = 15.0
    patience: float = 60.0
    concurrency: int = 64
    backoff: Backoff = field(default_factory=lambda: Backoff(0.1, 5.0))


class Conflict(Exception):
    """The object is not as the caller knew it. `stored`: as it is now, or None if it is gone."""

    def __init__(self, key: str, stored: Stored | None) -> None:
        super().__init__(key)
        self.key, self.stored = key, stored


class Store:
    """A backend with deadlines, retries, request counts and conditional writes whose outcome is known.

    A doubt is settled by reading back and comparing: after a lost reply, a 412 may be the answer to one's own write. So
    bodies of conditional writes must be unique (carry a put-id), unless it does not matter whose they are.
    """

    def __init__(self, backend: Backend, *, limits: StoreLimits | None = None, clock: Clock = SYSTEM) -> None:
        self.backend = backend
        self.limits = limits or StoreLimits()
        self.clock = clock
        self.requests: Counter[str] = Counter()
        """How often each verb was sent, retries included."""
        self._slots = anyio.Semaphore(self.limits.concurrency, fast_acquire=True)

    @property
    def url(self) -> str:
        return self.backend.url

    def lane(self) -> Store:
        """The same store, with a few requests of its own: what must not wait behind those of thousands of partitions."""
        return self._beside(self.backend.lane(), replace(self.limits, concurrency=LANE))

    def fleeting(self) -> Store:
        """The same store, for objects that nobody misses after a power failure."""
        return self._beside(self.backend.fleeting(), self.limits)

    def above(self) -> Store | None:
        """The place that this one lies in, to be read only; None: it lies in none."""
        backend = self.backend.above()
        return None if backend is None else self._beside(backend, self.limits)

    def _beside(self, backend: Backend, limits: StoreLimits) -> Store:
        """Another way to these objects, or to others over the same connection; its requests count here."""
        store = Store(backend, limits=limits, clock=self.clock)
        store.requests = self.requests
        return store

    async def __aenter__(self) -> Store:
        with first_contact():
            await self.backend.open()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        locate(error, self.url)
        with anyio.CancelScope(shield=True), anyio.move_on_after(5):
            await self.backend.close()

    async def get(
        self, key: str, *, unless: str | None = None, tail: int | None = None, size: int = 0
    ) -> Stored | None:
        """See `Backend.get`; tried again while the store is unavailable. `size`: of the object, as far as it is known. What is
        not there in time is asked for its size, and then has the time for that: a large one comes at once where it is known.
        """

        async def measure() -> int:
            found = await self._once("get", lambda: self.backend.get(key, tail=1))
            return found.size if found is not None else 0

        known, missing = (size, measure) if tail is None else (tail, None)
        return await self._persist("get", key, lambda: self.backend.get(key, unless=unless, tail=tail), known, missing)

    async def put(self, key: str, body: bytes) -> str:
        """Write unconditionally; tried again while the store is unavailable."""
        return await self._persist("put", key, lambda: self.backend.put(key, body), len(body))

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        """See `Backend.list`; each page is tried again while the store is unavailable."""

        async def ask(wanted: int | None, page: str | None) -> tuple[Listing, str | None]:
            return await self._persist("list", prefix, lambda: self.backend.list_page(prefix, after, wanted, page))

        return await all_pages(ask, limit)

    async def delete(self, key: str) -> None:
        """Remove the object; tried again while the store is unavailable."""
        await self._persist("delete", key, lambda: self.backend.delete(key))

    async def create(self, key: str, body: bytes) -> str:
        """Create the object, once, whatever becomes of the replies. Returns its tag.

        Raises:
            Conflict: another body is there; it rides along as `stored`.
            StoreUnavailable: not settled within `limits.patience`, and as long again for a read that is to tell; or refused after a
                doubt. The write may still land.
            StoreRefused: the store said no, and nothing was written.
        """
        return await self._settle(key, body, None, lambda: self.backend.put_if_absent(key, body), "put_if_absent")

    async def swap(self, key: str, body: bytes, tag: str) -> str:
        """Replace the version `tag` of the object, once, whatever becomes of the replies. Returns the new tag.

        Raises:
            Conflict: the object is another version, or gone; it rides along as `stored`. If one's own write was
                applied and overwritten before it could be read back, that is a conflict too.
            StoreUnavailable, StoreRefused: as for `create`.
        """
        return await self._settle(key, body, tag, lambda: self.backend.put_if_match(key, body, tag), "put_if_match")

    async def write(self, key: str, body: bytes, tag: str | None) -> str:
        """`swap` of version `tag`; `create`, if the writer knows of no object (None)."""
        return await (self.create(key, body) if tag is None else self.swap(key, body, tag))

    async def change(self, key: str, change: Callable[[Stored | None], bytes | None]) -> None:
        """Replace the object by what `change` makes of it, however many others do so, too; leave it if that is None.

        `change` gets None while there is no such object. The bodies it makes must be unique, as for `create` and `swap`.
        """
        stored = await self.get(key)
        while (body := change(stored)) is not None:
            try:
                await self.write(key, body, stored.tag if stored else None)
            except Conflict as conflict:
                stored = conflict.stored
            else:
                return

    async def _settle(
        self, key: str, body: bytes, expected: str | None, send: Callable[[], Awaitable[str]], verb: str
    ) -> str:
        """Send; on any answer but yes read back. `expected`: the tag under which the write has not been applied yet."""
        give_up = self.clock.monotonic() + self.limits.patience + len(body) // SLOWEST
        attempt = 0
        doubt: StoreUnavailable | None = None  # how a send ended that may have been applied, or may be yet
        while True:
            attempt += 1
            try:
                try:
                    return await self._once(verb, send, len(body))
                except ConditionFailed:
                    pass
                except StoreUnavailable as error:
                    doubt = error
                stored = await self.get(key, size=len(body))
            except StoreRefused as error:
                if doubt is None:
                    raise
                raise StoreUnavailable(
                    f"{self.url}: whether {verb} of {key!r} was applied cannot be told, and it may still land: {error}"
                ) from None  # no refusal: the caller would take it for a write that was not made
            if stored is not None and stored.body == body:
                return stored.tag
            untouched = stored is None if expected is None else stored is not None and stored.tag == expected
            if not untouched:
                raise Conflict(key, stored)
            # Not there (yet): an earlier try may still land, so the same bytes are sent again, never others.
            if self.clock.monotonic() >= give_up:
                raise doubt or StoreUnavailable(f"{self.url}: {verb} of {key!r} is refused and undone by turns")
            await self.clock.sleep(self.limits.backoff.delay(attempt, self.clock.random))

    async def _persist(
        self,
        verb: str,
        key: str,
        send: Callable[[], Awaitable[T]],
        size: int = 0,
        measure: Callable[[], Awaitable[int]] | None = None,
    ) -> T:
        """Send until it is answered. `measure`: asks how much is to come, when it has not come in the time for `size`."""
        began = self.clock.monotonic()
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._once(verb, send, size)
            except StoreUnavailable as error:
                if measure is not None and isinstance(error.__cause__, TimeoutError):
                    with suppress(StoreUnavailable):
                        size, measure = max(size, await measure()), None
                delay = self.limits.backoff.delay(attempt, self.clock.random)
                if self.clock.monotonic() + delay >= began + self.limits.patience + size // SLOWEST:
                    raise
                log.debug("store.retry", verb=verb, key=key, attempt=attempt, delay=delay, error=str(error))
            await self.clock.sleep(delay)

    async def _once(self, verb: str, send: Callable[[], Awaitable[T]], size: int = 0) -> T:
        timeout = self.limits.timeout + size // SLOWEST
        async with self._slots:
            self.requests[verb] += 1
            try:
                with anyio.fail_after(timeout):
                    return await send()
            except TimeoutError as error:
                raise StoreUnavailable(
                    f"{self.url}: no answer to {verb} within {timeout:g} s (store_timeout)"
                ) from error
