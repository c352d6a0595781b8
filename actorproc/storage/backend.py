"""The backend contract: six requests over flat keys. `actorproc.storage.store.Store` adds deadlines and retries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LANE = 4
"""Concurrent requests in a lane of its own, beyond `StoreLimits.concurrency`."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as read. `body` is only its end if a tail was requested; `size` is that of the whole object."""

    body: bytes
    tag: str
    size: int


class Entry(NamedTuple):
    """An object in a listing. `modified`: seconds since 1970 by the store's own clock."""

    key: str
    tag: str
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class Listing:
    """`entries` in key order. `now`: the store's own clock when it answered, from which ages are computed."""

    entries: list[Entry]
    now: float


async def all_pages(
    ask: Callable[[int | None, str | None], Awaitable[tuple[Listing, str | None]]], limit: int | None
) -> Listing:
    """Join the pages that `ask(limit, page)` returns, as `Backend.list_page` does."""
    entries: list[Entry] = []
    page: str | None = None
    while True:
        listing, page = await ask(None if limit is None else limit - len(entries), page)
        entries += listing.entries
        if page is None or len(entries) == limit:
            return Listing(sorted(entries), listing.now)


class NotModified(Exception):
    """The object still has the tag that the reader knows. An answer, not an error."""


class Backend(ABC):
    """Six requests over flat keys. One attempt each, without retries or knowledge of the content.

    Every method raises StoreUnavailable if the outcome is unknown or another attempt may succeed, and StoreRefused if
    the failure is final. A conditional write raises ConditionFailed if the store answers that the condition does not
    hold; it must reach the store at most once per call. Reads see every acknowledged write (strong consistency).
    """

    url: str
    """The place of the objects, as users write it."""

    @abstractmethod
    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        """The object, or None. With `unless`, raises NotModified if the object still has that tag.
        With `tail`, reads only the last `tail` bytes (all if the object is shorter)."""

    @abstractmethod
    async def put(self, key: str, body: bytes) -> str:
        """Write unconditionally. The object is durable on return. Returns the tag."""

    @abstractmethod
    async def put_if_absent(self, key: str, body: bytes) -> str:
        """Write if the object does not exist. Returns the tag."""

    @abstractmethod
    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        """Write if the object exists with this tag. Returns the new tag."""

    @abstractmethod
    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        """Objects whose key starts with `prefix` and sorts after `after` (a whole key); at most `limit` where given."""

    async def list_page(
        self, prefix: str, after: str = "", limit: int | None = None, page: str | None = None
    ) -> tuple[Listing, str | None]:
        """One page of `list`, and the argument `page` for the next one; None after the last. Backends that list in
        pages override this, because each page is a request with its own deadline."""
        return await self.list(prefix, after, limit), None

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Delete the object if it exists."""

    def lane(self) -> Backend:
        """The same objects over `LANE` connections of their own, which never wait behind other requests."""
        return self

    def fleeting(self) -> Backend:
        """The same objects with writes that need not survive a power failure."""
        return self

    async def warnings(self) -> Sequence[str]:
        """Settings of the place that cost money or may delete what is needed, a line for each."""
        return ()

    async def open(self) -> None:
        """Connect. Raises StoreRefused if the place does not exist or access is denied."""

    async def close(self) -> None:
        """Close the connections."""
