"""Heartbeats: the document by which a host renews all of its leases, its writer and its readers."""

from __future__ import annotations

import math
import os

import anyio
import msgspec

from actorproc.config.settings import Settings
from actorproc.errors import CorruptObject, StoreUnavailable
from actorproc.group.format_versions import FORMAT_VERSIONS, VERSION, FormatVersions, incarnation_name
from actorproc.group.reports import HostReport
from actorproc.runtime.clock import Clock
from actorproc.runtime.logger import get_logger
from actorproc.runtime.tasks import gather
from actorproc.storage.document import Document
from actorproc.storage.names import ProcessorLayout, host_of
from actorproc.storage.store import Store

logger = get_logger(__name__)

Incarnation = tuple[str, str]
"""A host, and the id of one of its lives: a nonce, the highest format version that it reads, and its expiration in
seconds, such as `1f0c...-f2-60s`. Hosts may differ in both. As part of the name, they are in every listing."""

TRUST = 0.8
"""Share of the expiration for which a host trusts its own heartbeat. The rest allows for clocks of different speed."""


class Heartbeat(Document, frozen=True):
    """The latest renewal of one incarnation of a host. `started`, `time`: seconds since 1970, by the host's clock."""

    host: str
    incarnation: str
    address: str | None
    """Where it listens for nudges."""
    pid: int
    started: float
    time: float
    beat: int
    """Grows with each renewal, so that no two have the same content, and with it the same tag."""
    report: HostReport = msgspec.field(default=HostReport(), name="statistics")
    release: str = ""
    """Of the actorproc that it runs."""


class HeartbeatWriter:
    """Writes the heartbeat of this host: one object for each incarnation, rewritten at every renewal."""

    def __init__(
        self,
        store: Store,
        layout: ProcessorLayout,
        host: str,
        settings: Settings,
        clock: Clock,
        format_versions: FormatVersions = FORMAT_VERSIONS,
    ) -> None:
        self._store = store
        self._layout = layout
        self._host = host
        self._settings = settings
        self._clock = clock
        self._format_versions = format_versions
        self._beat = 0
        self._writes: set[anyio.CancelScope] = set()
        self._ended = False
        self.past: set[str] = set()
        """Earlier incarnations of this host in this process."""
        self._begin()

    def _begin(self) -> None:
        expiration = self._settings.lease_expiration_interval
        self.incarnation = incarnation_name(self._clock.nonce(), self._format_versions, expiration)
        self.valid_until = float("-inf")
        """Time on `clock.monotonic` until which no other host may consider this one dead."""
        self._started = self._clock.wall()

    async def renew(self, address: str | None, report: HostReport) -> None:
        """Write the heartbeat. Its expiration counts from before the request, because the store may have it since then.

        Raises:
            StoreUnavailable: not written within the renew interval; due again at once.
        """
        if self._ended:
            return
        incarnation, heartbeat = self.incarnation, self._next(address, report)
        within = self._settings.lease_renew_interval
        asked = self._clock.monotonic()
        with anyio.move_on_after(within) as scope:  # after a longer time `asked` would be too old
            self._writes.add(scope)
            try:
                await self._store.put(self._layout.host(self._host, incarnation), heartbeat.to_json())
            finally:
                self._writes.discard(scope)
        if scope.cancelled_caught and not self._ended:
            outage = self._store.writes
            why = f": {outage.error}" if outage.since is not None else ""
            raise StoreUnavailable(f"{self._store.url}: no heartbeat written within {within:g} s{why}")
        if incarnation == self.incarnation and not self._ended:
            trusted = TRUST * self._settings.lease_expiration_interval
            self.valid_until = max(self.valid_until, asked + trusted)

    async def say(self, store: Store, address: str | None, report: HostReport) -> None:
        """Write a heartbeat through another store. Others trust this host for longer, and it does not trust itself."""
        if not self._ended:
            await store.put(self._layout.host(self._host, self.incarnation), self._next(address, report).to_json())

    def _next(self, address: str | None, report: HostReport) -> Heartbeat:
        self._beat += 1
        return Heartbeat(
            host=self._host, incarnation=self.incarnation, address=address, pid=os.getpid(), started=self._started,
            time=self._clock.wall(), beat=self._beat, report=report, release=VERSION,
        )  # fmt: skip

    def restart(self) -> None:
        """Become another incarnation; the next `renew` is its first."""
        self.past.add(self.incarnation)
        self._begin()

    def end(self) -> None:
        """Write no more, and cancel a write that is in progress."""
        self._ended = True
        self.valid_until = float("-inf")
        for scope in self._writes:
            scope.cancel()


async def read_heartbeats(store: Store, layout: ProcessorLayout) -> list[tuple[Heartbeat, float]]:
    """Every heartbeat, by key, with its age in seconds by the store's own clock. One LIST, and one GET for each.

    A corrupt one is logged and skipped.

    Raises:
        StoreError: one could not be read.
    """
    listing = await store.list(layout.hosts)
    modified = {entry.key: entry.modified for entry in listing.entries if incarnation_of(entry.key)}
    found = await gather(sorted(modified), store.get)
    heartbeats = []
    for key, stored in found.items():
        if stored is None:
            continue
        try:
            heartbeats.append((Heartbeat.from_json(key, stored.body), listing.now - modified[key]))
        except CorruptObject as error:
            logger.warning(
                "heartbeat.unreadable", error=str(error), what_to_do="delete it: a host that runs writes it again"
            )
    return heartbeats


def expiration_of(who: Incarnation, default: float) -> float:
    """Seconds without a renewal after which it is dead; `default` if its name does not say."""
    _, dash, seconds = who[1].rpartition("-")
    try:
        found = float(seconds.removesuffix("s"))
    except ValueError:
        return default
    return found if dash and 0 < found < math.inf else default


def incarnation_of(key: str) -> Incarnation | None:
    """The incarnation whose heartbeat has this key; None for any other key."""
    try:
        return host_of(key)
    except ValueError:
        return None
