"""Feeds: one watch per processor that somebody looks at, shared by all viewers, and ended some time after the last."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import anyio
import msgspec

from actorproc.admin.chain_lag import ChainLag
from actorproc.admin.fleet import ErrorGroup, Fleet, HostView, PartitionView, changed
from actorproc.admin.fleet_sinks import FleetSink
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.admin.history import HistoryReader, Series
from actorproc.admin.scaling import BETWEEN, Progress, Scale, useful_hosts
from actorproc.config.settings import Settings
from actorproc.errors import ActorprocError
from actorproc.group.wishes import Wishes
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.error_text import describe_error
from actorproc.runtime.logger import get_logger
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store

logger = get_logger(__name__)

LOOK_EVERY = 1.0
"""Seconds between two looks while somebody watches."""

LINGER = 300.0
"""Seconds for which a watch goes on after its last viewer, so that the history of lag is there when one returns."""

_LINGER_EVERY = 10.0  # seconds between two looks meanwhile


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The stream of a viewer: first everything, and then the changes."""

    processor: str
    time: float
    version: int
    hosts: list[HostView]
    partitions: list[PartitionView]
    errors: list[ErrorGroup]
    sinks: list[FleetSink]
    lags: list[int | None]
    wishes: Wishes
    is_chained: bool
    """It reads the output of another processor."""
    problem: str | None = None
    """Why the latest look failed. The shown view is older then."""


class Feed:
    """Looks at one processor while it is viewed.

    Args:
        container: URL of its container.
    """

    def __init__(self, container: str, processor: str, settings: Settings) -> None:
        self._container = container
        self._processor = processor
        self._settings = settings
        self._fleet: Fleet | None = None
        self._watch: FleetWatch | None = None
        self._past: HistoryReader | None = None
        self._problem: str | None = None
        self._version = 0
        self._changed_in: dict[str, int] = {}  # partition -> version of its latest change
        self._change = asyncio.Event()
        self._progress: deque[Progress] = deque(maxlen=3)  # at least `BETWEEN` seconds apart, but for the latest
        self._viewers = 0
        self._viewer_came = asyncio.Event()
        self._left_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def view(self, since: int = 0) -> View:
        """The latest view, or its changes after version `since`.

        Raises:
            ActorprocError: the first look failed.
        """
        self._left_at = SYSTEM.monotonic()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        change = self._change
        if self._fleet is None:
            await change.wait()
        if self._fleet is None or self._watch is None:
            raise ActorprocError(self._problem or f"{self._processor} cannot be read")
        views = self._fleet.partitions.values()
        return View(
            processor=self._processor, time=self._fleet.time, version=self._version, hosts=self._fleet.hosts,
            partitions=[view for view in views if self._changed_in[view.partition] > since],
            errors=self._fleet.errors(), sinks=self._fleet.sinks, lags=list(self._watch.lags),
            wishes=self._fleet.wishes, is_chained=self._fleet.is_chained,
            problem=self._problem,
        )  # fmt: skip

    async def views(self, since: int = 0) -> AsyncIterator[View]:
        """The changes after version `since`, and again after each change."""
        self._viewers += 1
        self._viewer_came.set()
        try:
            view = await self.view(since if since <= self._version else 0)  # else an earlier server gave the version
            while True:
                yield view
                change, since = self._change, view.version
                await change.wait()
                view = await self.view(since)
        finally:
            self._viewers -= 1
            self._left_at = SYSTEM.monotonic()

    async def scale(self, catch_up: float) -> Scale:
        """How many hosts are useful. Compares the latest look with one some time before.

        Raises:
            ActorprocError: the first look failed.
        """
        await self.view()
        *earlier, latest = self._progress
        before = next((p for p in reversed(earlier) if latest.time - p.time >= BETWEEN), None)
        return useful_hosts(before, latest, catch_up)

    def history(self, partition: str) -> list[int | None]:
        """The latest lags of one partition."""
        return list(self._watch.history.get(partition, ())) if self._watch else []

    async def day(self, partition: str | None) -> Series:
        """The last day of the processor, or of one partition.

        Raises:
            ActorprocError: it cannot be read.
        """
        await self.view()
        if self._past is None:
            raise ActorprocError(f"{self._processor} cannot be read")
        return await self._past.read(partition)

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            layout = ProcessorLayout(self._processor)
            async with (
                open_store(self._container, self._settings) as store,
                ChainLag(store, layout, self._settings) as chain,
            ):
                self._watch = FleetWatch(store, layout, self._settings.lease_expiration_interval)
                self._past = HistoryReader(store, layout)
                while self._viewers or SYSTEM.monotonic() < self._left_at + LINGER:
                    await self._look(self._watch, chain)
                    await self._pause()
        except Exception as error:  # noqa: BLE001  # viewers get it, whatever it is
            self._problem = describe_error(error)
            logger.warning("dashboard.look_failed", processor=self._processor, error=self._problem)
        finally:
            self._fleet = None
            self._tell()  # viewers wait for it

    async def _pause(self) -> None:
        """Until the next look, which a new viewer does not wait for."""
        if self._viewers:
            await SYSTEM.sleep(LOOK_EVERY)
            return
        self._viewer_came.clear()
        with anyio.move_on_after(_LINGER_EVERY):
            await self._viewer_came.wait()

    async def _look(self, watch: FleetWatch, chain: ChainLag) -> None:
        before, problem = self._fleet, self._problem
        try:
            fleet, self._problem = await chain.add(await watch.look()), None
        except ActorprocError as error:
            self._problem = str(error)
            if before is None or problem is None:
                self._version += 1
                self._tell()
            return
        self._note_progress(Progress.of(fleet))
        views = changed(before.partitions if before else {}, fleet.partitions)
        hosts_changed = before is None or _state_of(before.hosts) != _state_of(fleet.hosts)
        self._fleet = fleet
        asked = before is None or before.wishes != fleet.wishes
        if views or hosts_changed or asked or problem != self._problem:
            self._version += 1
            self._changed_in.update((view.partition, self._version) for view in views)
            self._tell()

    def _note_progress(self, progress: Progress) -> None:
        """Keep the looks that `scale` compares: the latest, and earlier ones `BETWEEN` seconds apart."""
        kept = self._progress
        if len(kept) > 1 and kept[-1].time - kept[-2].time < BETWEEN:
            kept.pop()
        kept.append(progress)

    def _tell(self) -> None:
        self._change.set()
        self._change = asyncio.Event()


def _state_of(hosts: list[HostView]) -> list[Any]:
    """The hosts without the age of their heartbeats, which grows all the time."""
    return [msgspec.structs.replace(host, age=0.0 if host.alive else None) for host in hosts]


class Feeds:
    """The feeds of one server, by processor.

    Args:
        container: URL of the container with the processors.
    """

    def __init__(self, container: str, settings: Settings) -> None:
        self.container = container
        self.settings = settings
        self._feeds: dict[str, Feed] = {}

    def of(self, processor: str) -> Feed:
        return self._feeds.setdefault(processor, Feed(self.container, processor, self.settings))
