"""The sinks of one host: registered and opened once, and shared by the partitions that it has."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import anyio
import pyarrow as pa

from actorproc.errors import UsageError
from actorproc.output.chain import OutputChain
from actorproc.output.row_reader import partitions_with_state
from actorproc.output.source_identity import dataset_identity
from actorproc.retention.readers import SinkEntry, read_registry
from actorproc.runtime.clock import Clock
from actorproc.runtime.error_text import format_error
from actorproc.runtime.tasks import gather
from actorproc.sinks.delivery import SinkDelivery
from actorproc.sinks.entries import check_alike, progress_document, register_sink
from actorproc.sinks.host_registry import HostRegistry
from actorproc.sinks.lineage import home_of, position_of
from actorproc.sinks.memory import SinkMemory
from actorproc.sinks.opening import make_sink
from actorproc.sinks.positions import PositionsInContainer
from actorproc.sinks.protocol import Sink, SinkError, SinkRefused, SinkTarget
from actorproc.sinks.row_shape import RowShape
from actorproc.sinks.tables.committer import TableCommitter
from actorproc.sinks.tables.host_tables import HostTables
from actorproc.sinks.tables.protocol import TableHome, TableSink
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

SinkConfig = str | Mapping[str, Any] | SinkTarget
"""A URL; options with the URL as `url`; or a sink."""

_FIRST_TRY = 10.0
"""Seconds that a sink may take to open before the partitions start without it."""


_REOPEN_AFTER = 20.0
"""Seconds after which a sink that refuses is opened once more."""


class SharedSink:
    """One sink, which is opened by the first delivery that needs it, and again after it has failed to open."""

    def __init__(self, name: str, sink: Sink, shape: RowShape, clock: Clock) -> None:
        self.name, self.sink, self.shape, self._clock = name, sink, shape, clock
        self.memory = SinkMemory(sink.options.buffer_bytes)
        self._lock = anyio.Lock()
        self._is_open = False
        self._opened_at = -math.inf

    async def opened(self) -> Sink:
        """Raises whatever `Sink.open` raises."""
        async with self._lock:
            if not self._is_open:
                await self.sink.open(self.shape.schema)
                self._is_open, self._opened_at = True, self._clock.monotonic()
        return self.sink

    def reopen(self) -> None:
        """The sink refuses: open it once more, since its target may be another one, or be mended. Not too often."""
        if self._is_open and self._clock.monotonic() >= self._opened_at + _REOPEN_AFTER:
            self._is_open = False


class HostSinks:
    """The configured sinks.

    Args:
        configured: by name.
        log: bound to processor and host.
    """

    def __init__(self, configured: Mapping[str, SinkConfig], processor: str, clock: Clock, log: Any) -> None:
        self.configured = configured
        self._made = {
            name: given if isinstance(given, SinkTarget) else make_sink(name, given, processor=processor, clock=clock)
            for name, given in configured.items()
        }
        self._clock, self._logger = clock, log
        self._shared: list[SharedSink] = []
        self.tables = HostTables((), clock, log)
        self.delivered = Counter[str]()
        """Rows by sink, since this host started."""

    def __len__(self) -> int:
        return len(self._made)

    def refuse_replace(self) -> None:
        """Rows of timers have the sequence of the record before them: by sequences nobody can take them back.

        Raises:
            UsageError: a sink has `on_reset = "replace"`.
        """
        for name, sink in self._made.items():
            if isinstance(sink, Sink | TableSink) and sink.options.on_reset == "replace":
                raise UsageError(f"sink {name}: on_reset = replace cannot take back rows that on_wake has made")

    @property
    def need_owner(self) -> bool:
        """Whether the owner of a partition delivers its commits."""
        return any(isinstance(sink, Sink) for sink in self._made.values())

    async def open(
        self,
        store: Store,
        layout: ProcessorLayout,
        schema: pa.Schema,
        host: str = "",
        tell: Callable[..., None] = lambda kind, **fields: None,
        follow: Callable[[str], None] = lambda address: None,
    ) -> None:
        """Register and open all. A sink that is away is opened later, by its deliveries.

        Args:
            schema: of the rows, with `_sequence`.
            host: its name.
            tell, follow: of tables; see `TableCommitter`.

        Raises:
            UsageError: options do not fit the output, a sink is registered for another target, or it refuses the rows.
        """
        self._store, self._layout, self._schema = store, layout, schema
        self._registry = HostRegistry(store, layout)
        known = (await read_registry(store, layout.readers)).sinks
        for name, sink in self._made.items():  # before anything in a target is created
            if name in known:
                check_alike(name, known[name], sink.registered_as, sink.fixed)
        rows = {name: sink for name, sink in self._made.items() if isinstance(sink, Sink)}
        tables = {name: sink for name, sink in self._made.items() if isinstance(sink, TableSink)}
        committers = await self._committers(tables, host, tell, follow)
        self._shared = [SharedSink(name, sink, _shape(name, sink, schema), self._clock) for name, sink in rows.items()]
        for shared in self._shared:
            if isinstance(shared.sink, PositionsInContainer):
                shared.sink.keep_in(store, layout, shared.name)
        # All at once: those that are away hold up the start no longer than one. And before they are registered: one
        # that is refused holds up no trim.
        await gather(
            [*((c.name, c.sink, c.open) for c in committers), *((s.name, s.sink, s.opened) for s in self._shared)],
            lambda one: self._try(*one),
        )
        for name, table in tables.items():
            await self._register(name, table, table.options.start, table.table)
        for name, sink in rows.items():
            await self._register(name, sink, sink.options.start)
        self.tables = HostTables(committers, self._clock, self._logger)

    async def _committers(
        self,
        tables: Mapping[str, TableSink],
        host: str,
        tell: Callable[..., None],
        follow: Callable[[str], None],
    ) -> list[TableCommitter]:
        store, layout = self._store, self._layout
        within = [name for name, sink in tables.items() if sink.table == "within"]
        if len(within) > 1:
            raise UsageError(f"sinks {' and '.join(within)}: both would be the table in the folder of the output")
        home = TableHome(store, layout, await dataset_identity(store, layout) or "")
        return [
            TableCommitter(name, sink, home, schema=self._schema, host=host, log=self._logger, tell=tell, follow=follow)
            for name, sink in tables.items()
        ]

    async def _register(
        self,
        name: str,
        sink: SinkTarget,
        start: Literal["earliest", "now"],
        table: Literal["", "beside", "within"] = "",
    ) -> None:
        starts: dict[str, int] = {}
        if start == "now":
            store, layout = self._store, self._layout
            tips = await gather(
                await partitions_with_state(store, layout), lambda p: OutputChain(store, layout, p).tip()
            )
            starts = {partition: tip.number for partition, tip in tips.items() if tip is not None}
        replaces = isinstance(sink, TableSink) and sink.options.on_reset == "replace"
        await register_sink(
            self._store,
            self._layout,
            name,
            sink.registered_as,
            starts,
            table=table,
            ordered=sink.ordered,
            replaces=replaces,
            fixed=sink.fixed,
        )

    async def _try(self, name: str, sink: SinkTarget, opened: Callable[[], Awaitable[object]]) -> None:
        error: Exception | None = None
        with anyio.move_on_after(_FIRST_TRY) as scope:
            try:
                await opened()
            except (SinkRefused, UsageError) as refused:
                raise UsageError(f"sink {name}: {refused}") from None
            except Exception as other:  # noqa: BLE001  # whatever the sink's client raises
                error = other
        if scope.cancelled_caught:
            error = SinkError(f"it has not answered within {_FIRST_TRY:g} s")
        if error is None:
            self._logger.info("sink.opened", sink=name, url=sink.url, guarantee=str(sink.guarantee))
        else:
            why = "rows are kept in the container, and delivered once it answers"
            self._logger.warning("sink.unreachable", sink=name, error=format_error(error), why=why)

    def deliveries(
        self, partition: str, log: Any, tell: Callable[..., None] = lambda kind, **fields: None
    ) -> list[SinkDelivery]:
        """The deliveries of one partition. `tell`: see `SinkDelivery`."""

        def told(kind: str, **fields: Any) -> None:
            self.delivered[fields["sink"]] += fields.get("rows", 0)
            tell(kind, **fields)

        return [
            SinkDelivery(shared.name, shared.opened, shared.reopen, shared.sink.options, shared.shape, partition,
                         store=self._store, memory=shared.memory,
                         layout=self._layout, registry=self._registry, schema=self._schema, log=log, tell=told)
            for shared in self._shared
        ]  # fmt: skip

    async def position(self, name: str, partition: str, entry: SinkEntry) -> int:
        """The number of the next commit, as the sink has it. Raises whatever the sink raises; -1: nobody knows."""
        shared = next((shared for shared in self._shared if shared.name == name), None)
        if shared is None:
            return -1
        home, noted = home_of(self._store, self._layout), progress_document(self._store, self._layout, name, partition)
        _, position = await position_of(await shared.opened(), entry, partition, home, noted.read)
        return position

    async def close(self) -> None:
        for name, sink in self._made.items():
            try:
                await sink.close()
            except Exception as error:  # noqa: BLE001  # the host ends all the same
                self._logger.warning("sink.not_closed", sink=name, error=format_error(error))


def _shape(name: str, sink: Sink, schema: pa.Schema) -> RowShape:
    try:
        return RowShape(sink.options, schema, sink.can)
    except UsageError as error:
        raise UsageError(f"sink {name}: {error}") from None
