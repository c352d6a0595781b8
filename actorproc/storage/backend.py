"""The backend contract: six requests over flat keys. `actorproc.storage.store.Store` adds deadlines and retries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel

from actorproc.config.settings import Settings
from actorproc.runtime.clock import Clock

OUTSIDE = "192.0.2.1"
"""Routed like any outside address, and used by nobody: reserved for documentation (RFC 5737)."""

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


class NoOptions(BaseModel):
    """Of a store without options."""


@dataclass(frozen=True, slots=True)
class Hadoop:
    """How Spark's own readers and writers reach a place, through Hadoop.

    Attributes:
        url: of the place, as Spark spells it.
        options: Hadoop's, such as endpoint and keys.
        file_system: the Java class that must be loadable; "" if each Spark has it.
        packages: Maven coordinates of the JARs with that class. `{hadoop}` stands for the version of Spark's Hadoop.
        excludes: what these packages need not bring, as GROUP:ARTIFACT.
    """

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    file_system: str = ""
    packages: Sequence[str] = ()
    excludes: Sequence[str] = ()


class Backend(ABC):
    """Six requests over flat keys. One attempt each, without retries or knowledge of the content.

    Every method raises StoreUnavailable if the outcome is unknown or another attempt may succeed, and StoreRefused if
    the failure is final. A conditional write raises ConditionFailed if the store answers that the condition does not
    hold; it must reach the store at most once per call. Reads see every acknowledged write (strong consistency).
    """

    url: str
    """The place of the objects, as users write it."""
    options: ClassVar[type[BaseModel]] = NoOptions
    """Declares the settings of this kind of store. Each name begins with the scheme and `_`, such as `s3_region`."""
    spellings: ClassVar[Sequence[str]] = ()
    """Other schemes under which Hadoop knows the same places."""
    endpoint: str | None = None
    """The address of the service, if another one than the provider's was given. `doctor` shows it."""

    @classmethod
    def of_url(cls, url: str, options: Any, *, settings: Settings, clock: Clock) -> Self:
        """The backend at a URL, not yet connected. Registered as `actorproc.stores` under its scheme.

        Args:
            options: an instance of the class's `options`.

        Raises:
            UsageError: the URL is malformed.
        """
        raise NotImplementedError(f"{cls.__name__} cannot be opened by a URL")

    @classmethod
    def normal_url(cls, url: str) -> str:
        """The URL as the attribute `url` will have it, if this store is registered under several schemes.

        Raises:
            UsageError: the URL is malformed.
        """
        return url

    @property
    def route(self) -> str | None:
        """A host name or address on the way to the place. Hosts advertise their address in that network to others.

        None: the place is on this machine, and so are all hosts.
        """
        return OUTSIDE

    @property
    def hadoop(self) -> Hadoop | None:
        """How Spark's own readers reach the place; None: they do not."""
        return None

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
