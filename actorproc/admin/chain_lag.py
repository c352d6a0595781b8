"""How far partitions are behind the beginning of a chain of processors, which read each other's output."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from actorproc.admin.fleet import Fleet, PartitionView
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.config.settings import Settings
from actorproc.errors import ActorprocError
from actorproc.output.source_identity import read_source
from actorproc.runtime.logger import get_logger
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import OUTPUT_SCHEME, open_store

logger = get_logger(__name__)

_LONGEST = 32  # processors of a chain that are looked at: a circle would have no end


class ChainLag:
    """Looks at the processors before one, and writes nothing. A context, which holds their stores open.

    The processors before are found once. A processor that reads something else than an output costs one request.
    """

    def __init__(self, store: Store, layout: ProcessorLayout, settings: Settings) -> None:
        self._store, self._layout, self._settings = store, layout, settings
        self._opened = AsyncExitStack()
        self._before: list[FleetWatch] | None = None  # None: not known yet

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.aclose()

    async def add(self, fleet: Fleet) -> Fleet:
        """The fleet with `lag_seconds_end_to_end` of its partitions, if it reads the output of another processor.

        It is the greatest of the chain's processors, each since the record began its way; None if one does not tell.
        """
        try:
            if self._before is None:
                self._before = await self._find()
            if not self._before:
                return fleet
            before = [await watch.look() for watch in self._before]
        except ActorprocError as error:
            logger.debug("chain.unreadable", processor=self._layout.processor, error=str(error))
            return fleet
        partitions = {
            name: replace(
                view,
                lag_seconds_end_to_end=_greatest([_own(view), *(_own(one.partitions.get(name)) for one in before)]),
            )
            for name, view in fleet.partitions.items()
        }
        return replace(fleet, partitions=partitions, is_chained=True)

    async def _find(self) -> list[FleetWatch] | None:
        """The processors before, the nearest first; None: one of them has not run yet."""
        store, layout, found = self._store, self._layout, list[FleetWatch]()
        while len(found) < _LONGEST:
            recorded = await read_source(store, layout)
            if recorded is None:
                return None
            if not recorded.name.startswith(OUTPUT_SCHEME):
                break
            container, _, name = recorded.name.removeprefix(OUTPUT_SCHEME).rpartition("/")
            if container != store.url:
                store = await self._opened.enter_async_context(open_store(container, self._settings))
            layout = ProcessorLayout(name)
            found.append(FleetWatch(store, layout, self._settings.lease_expiration_interval))
        return found


def _own(view: PartitionView | None) -> float | None:
    """Age of the oldest record that waits at this processor, since it began its way; None: not known."""
    if view is None or view.lag == 0:
        return None if view is None else 0.0
    known = [seconds for seconds in (view.lag_seconds, view.lag_seconds_end_to_end) if seconds is not None]
    return max(known, default=None)


def _greatest(seconds: list[float | None]) -> float | None:
    known = [one for one in seconds if one is not None]
    return max(known) if len(known) == len(seconds) else None
