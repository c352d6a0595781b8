"""A store: a backend with deadlines, bounded concurrency, retries, request counts, and settled conditional writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeVar

import anyio

from actorproc.errors import ConditionFailed, StoreError, StoreRefused, StoreUnavailable, first_contact, locate
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger
from actorproc.storage.backend import LANE, Backend, Listing, NotModified, Stored, all_pages

T = TypeVar("T")
logger = get_logger(__name__)


SLOWEST = 2**20
"""Bytes per second. Requests for large objects get the extra time that this rate takes."""

_GRAIN = 1.0  # S3 tells whole seconds


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """`timeout`: seconds for one request. `patience`: seconds of retries. Large objects get more of both, by `SLOWEST`.
    `concurrency`: concurrent requests."""

    timeout: float = 15.0
    patience: float = 60.0
    concurrency: int = 64
    backoff: Backoff = field(default_factory=lambda: Backoff(0.1, 5.0))


@dataclass(slots=True)
class Outage:
    """Since when no read, or no write, was answered, and why; `since` is None while they are answered."""

    since: float | None = None
    """Seconds since 1970, by this host's clock."""
    error: str = ""

    def note(self, error: StoreUnavailable, sent_at: float) -> None:
        """A request that was sent at `sent_at` was not answered."""
        self.since = sent_at if self.since is None else self.since
        self.error = str(error)

    def end(self) -> None:
        """A request was answered."""
        self.since = None


class StoreTime:
    """The time by the store's clock, which all hosts see: this host's own clock, corrected by the latest listing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._correction = 0.0

    def note(self, told: float, sent_at: float) -> None:
        """The store said `told`, seconds since 1970, in answer to a request sent at `sent_at` by this host's clock."""
        least, most = told - self._clock.wall(), told + _GRAIN - sent_at
        self._correction = min(max(0.0, least), most)

    def now(self) -> float:
        """Seconds since 1970. From any thread.

        A host whose clock was set wrong would otherwise expire the keys of all others. A clock that agrees with the
        store's, as far as that is known, is followed as it is. Before the first listing nothing is known.
        """
        return self._clock.wall() + self._correction


class Conflict(Exception):
    """The object is another version than the caller expected. `stored`: the current one, or None if there is none."""

    def __init__(self, key: str, stored: Stored | None) -> None:
        super().__init__(key)
        self.key, self.stored = key, stored


class Store:
    """A backend with deadlines, retries, request counts and conditional writes whose outcome is known.

    After a lost reply, a 412 may be the answer to one's own write, and a proxy may refuse a write that it has passed
    on. So each conditional write that did not succeed is settled by reading the object back and comparing bodies.
    Bodies of conditional writes must therefore be unique (carry a put-id), unless it does not matter which of two equal
    bodies is stored.
    """

    def __init__(self, backend: Backend, *, limits: StoreLimits | None = None, clock: Clock = SYSTEM) -> None:
        self.backend = backend
        self.limits = limits or StoreLimits()
        self.clock = clock
        self.requests: Counter[str] = Counter()
        """Requests by verb, with retries."""
        self.failures: Counter[str] = Counter()
        """Requests without an answer that counts, most of which are sent again, by cause: `throttled`, `timeout` or
        `unavailable`."""
        self.reads, self.writes = Outage(), Outage()
        self.time = StoreTime(clock)
        self._slots = anyio.Semaphore(self.limits.concurrency, fast_acquire=True)

    @property
    def url(self) -> str:
        return self.backend.url

    def lane(self) -> Store:
        """The same store over connections of its own, for requests that must not wait behind those of partitions."""
        return self._beside(self.backend.lane(), replace(self.limits, concurrency=LANE))

    def fleeting(self) -> Store:
        """The same store with writes that need not survive a power failure."""
        return self._beside(self.backend.fleeting(), self.limits)

    def _beside(self, backend: Backend, limits: StoreLimits) -> Store:
        """A store whose requests count here, too."""
        store = Store(backend, limits=limits, clock=self.clock)
        store.requests, store.failures, store.time = self.requests, self.failures, self.time
        store.reads, store.writes = self.reads, self.writes
        return store

    async def __aenter__(self) -> Store:
        """Connect. Retried while the store is unavailable, and the first failure is logged: it may be a wrong address.

        Raises:
            StoreAccessError: the place does not exist, or denies access.
            StoreUnavailable: it has not answered within `limits.patience`.
        """
        deadline = self.clock.monotonic() + self.limits.patience
        with first_contact():
            for attempt in count(1):
                sent_at = self.clock.wall()
                try:
                    await self.backend.open()
                    self.reads.end()
                    break
                except StoreUnavailable as error:
                    self.reads.note(error, sent_at)
                    delay = self.limits.backoff.delay(attempt, self.clock.random)
                    if self.clock.monotonic() + delay >= deadline:
                        raise
                    say = logger.warning if attempt == 1 else logger.debug
                    say("store.unavailable", error=str(error), patience=self.limits.patience)
                await self.clock.sleep(delay)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        locate(error, self.url)
        with anyio.CancelScope(shield=True), anyio.move_on_after(5):
            await self.backend.close()

    async def get(
        self, key: str, *, unless: str | None = None, tail: int | None = None, size: int = 0
    ) -> Stored | None:
        """See `Backend.get`; retried while the store is unavailable.

        Args:
            size: of the object, if known. If an object does not arrive in time, its size is requested and the deadline
                of the next attempt extended; a known size saves that.
        """

        async def measure() -> int:
            found = await self.once("get", lambda: self.backend.get(key, tail=1))
            return found.size if found is not None else 0

        known, missing = (size, measure) if tail is None else (tail, None)
        return await self._persist("get", key, lambda: self.backend.get(key, unless=unless, tail=tail), known, missing)

    async def put(self, key: str, body: bytes) -> str:
        """Write unconditionally; retried while the store is unavailable."""
        return await self._persist("put", key, lambda: self.backend.put(key, body), len(body))

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        """See `Backend.list`; each page is retried while the store is unavailable."""

        async def ask(wanted: int | None, page: str | None) -> tuple[Listing, str | None]:
            return await self._persist("list", prefix, lambda: self._list_page(prefix, after, wanted, page))

        return await all_pages(ask, limit)

    async def _list_page(
        self, prefix: str, after: str, limit: int | None, page: str | None
    ) -> tuple[Listing, str | None]:
        sent_at = self.clock.wall()
        listing, following = await self.backend.list_page(prefix, after, limit, page)
        self.time.note(listing.now, sent_at)
        return listing, following

    async def delete(self, key: str) -> None:
        """Delete the object; retried while the store is unavailable."""
        await self._persist("delete", key, lambda: self.backend.delete(key))

    async def create(self, key: str, body: bytes) -> str:
        """Create the object exactly once, even if replies are lost. Returns its tag.

        Raises:
            Conflict: another object exists; it is attached as `stored`.
            StoreUnavailable: not settled within twice `limits.patience`, or refused after a doubt. The write may still
                be applied.
            StoreRefused: the store refused; nothing was written, or nothing can be read either.
        """
        return await self._settle(key, body, None, lambda: self.backend.put_if_absent(key, body), "put_if_absent")

    async def swap(self, key: str, body: bytes, tag: str) -> str:
        """Replace version `tag` of the object exactly once, even if replies are lost. Returns the new tag.

        Raises:
            Conflict: the object has another version, attached as `stored`, or does not exist. A write of ours that was
                applied and then overwritten before it could be read back is a conflict, too.
            StoreUnavailable, StoreRefused: as for `create`.
        """
        return await self._settle(key, body, tag, lambda: self.backend.put_if_match(key, body, tag), "put_if_match")

    async def write(self, key: str, body: bytes, tag: str | None) -> str:
        """`swap` of version `tag`, or `create` if it is None."""
        return await (self.create(key, body) if tag is None else self.swap(key, body, tag))

    async def _settle(
        self, key: str, body: bytes, expected: str | None, send: Callable[[], Awaitable[str]], verb: str
    ) -> str:
        """Send, and read back unless it succeeds. `expected`: the tag of the object while the write is not applied."""
        deadline = self.clock.monotonic() + self.limits.patience + len(body) // SLOWEST
        attempt = 0
        doubt: StoreUnavailable | None = None  # of an attempt that may have been applied, or may be later
        refusal: StoreRefused | None = None  # something between us and the store may have refused what it had passed on
        while True:
            attempt += 1
            try:
                return await self.once(verb, send, len(body))
            except ConditionFailed:
                pass
            except StoreUnavailable as error:
                doubt = error
            except StoreRefused as error:
                refusal = error
            try:
                stored = await self.get(key, size=len(body))
            except StoreRefused as error:
                raise _refused(f"{self.url}: {verb} of {key!r}", refusal or error, doubt) from None
            if stored is not None and stored.body == body:
                return stored.tag
            untouched = stored is None if expected is None else stored is not None and stored.tag == expected
            if not untouched:
                raise Conflict(key, stored)
            if refusal is not None:
                raise _refused(f"{self.url}: {verb} of {key!r}", refusal, doubt)
            # Not applied yet. An earlier attempt may still be, so the same bytes are sent again, never others.
            if self.clock.monotonic() >= deadline:
                raise doubt or StoreUnavailable(
                    f"{self.url}: {verb} of {key!r} is refused although its condition holds"
                )
            await self.clock.sleep(self.limits.backoff.delay(attempt, self.clock.random))

    async def _persist(
        self,
        verb: str,
        key: str,
        send: Callable[[], Awaitable[T]],
        size: int = 0,
        measure: Callable[[], Awaitable[int]] | None = None,
    ) -> T:
        """Send until it is answered. `measure`: returns the object's size, for an attempt that took too long."""
        began = self.clock.monotonic()
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self.once(verb, send, size)
            except StoreUnavailable as error:
                if measure is not None and isinstance(error.__cause__, TimeoutError):
                    with suppress(StoreUnavailable):
                        size, measure = max(size, await measure()), None
                delay = self.limits.backoff.delay(attempt, self.clock.random)
                if self.clock.monotonic() + delay >= began + self.limits.patience + size // SLOWEST:
                    raise
                logger.debug("store.retry", verb=verb, key=key, attempt=attempt, delay=delay, error=str(error))
            await self.clock.sleep(delay)

    async def once(self, verb: str, send: Callable[[], Awaitable[T]], size: int = 0) -> T:
        """Send one request, with its deadline, and count it. `size`: bytes that it transfers, for the deadline."""
        timeout = self.limits.timeout + size // SLOWEST
        async with self._slots:
            self.requests[verb] += 1
            outage, sent_at = self.reads if verb in ("get", "list") else self.writes, self.clock.wall()
            try:
                with anyio.fail_after(timeout):
                    answer = await send()
            except TimeoutError as error:
                late = StoreUnavailable(f"{self.url}: no answer to {verb} within {timeout:g} s (store_timeout)")
                outage.note(late, sent_at)
                self.failures["timeout"] += 1
                raise late from error
            except StoreUnavailable as error:
                outage.note(error, sent_at)
                self.failures["throttled" if error.throttled else "unavailable"] += 1
                raise
            except (ConditionFailed, NotModified, StoreRefused):
                outage.end()
                raise
            outage.end()
            return answer


def _refused(what: str, refusal: StoreRefused, doubt: StoreUnavailable | None) -> StoreError:
    """The error for a refused write: StoreRefused means that nothing was written, so not after a doubtful attempt."""
    if doubt is None:
        return refusal
    return StoreUnavailable(f"{what} may have been applied, or may be later: {refusal}")
