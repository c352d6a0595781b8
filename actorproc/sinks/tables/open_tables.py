"""The registered tables as trims, compaction and verification see them: opened by their configuration or their URL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from actorproc.errors import UsageError
from actorproc.output.source_identity import dataset_identity
from actorproc.retention.boundary import RETENTION
from actorproc.retention.kept_files import KeptFiles
from actorproc.retention.readers import SinkEntry, read_registry
from actorproc.runtime.error_text import format_error
from actorproc.runtime.logger import get_logger
from actorproc.sinks.opening import make_sink
from actorproc.sinks.tables.committer import TableCommitter
from actorproc.sinks.tables.ownership import Choice
from actorproc.sinks.tables.protocol import TableHome, TableSink, TableSnapshot
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A registered table."""

    name: str
    entry: SinkEntry
    committer: TableCommitter

    async def load(self) -> TableSnapshot:
        """The table now.

        Raises:
            UsageError: it cannot be read, or does not fit the container.
        """
        try:
            table = await self.committer.sink.load()
            await self.committer.check_fits(table, self.entry)
        except Exception as error:  # whatever the table's client raises
            raise UsageError(f"table {self.name}: {format_error(error)}") from error
        return table


@dataclass(frozen=True, slots=True)
class OpenTables:
    """All tables of a processor."""

    each: Sequence[OpenTable] = ()

    async def positions(self) -> Mapping[str, Mapping[str, int]]:
        """The number of the next commit to take, by table and partition (rule `asks`)."""
        found: dict[str, Mapping[str, int]] = {}
        for table in self.each:
            loaded = await table.load()
            places = loaded.places if loaded.life == table.entry.life else {}
            found[table.name] = {partition: place.position for partition, place in places.items()}
        return found

    async def catch_up(self) -> None:
        """Make the transactions that are due, so that the tables have seen the boundaries as they are now.

        Raises:
            UsageError: a table does not take them.
        """
        for table in self.each:
            try:
                await table.committer.commit()
            except Exception as error:  # whatever the table's client raises
                raise UsageError(f"table {table.name}: {format_error(error)}") from error

    async def check_anew(self) -> None:
        """Check that the tables can be made anew.

        Raises:
            UsageError: one cannot, see `TableCommitter.check_anew`.
        """
        for table in self.each:
            try:
                await table.committer.check_anew()
            except Exception as error:  # whatever the table's client raises
                raise UsageError(f"table {table.name}: {format_error(error)}") from error

    async def kept_now(self) -> KeptFiles:
        """`catch_up`, then `kept`."""
        await self.catch_up()
        return await self.kept()

    async def kept(self) -> KeptFiles:
        """Which files must stay, for readers of any version of the last hour."""
        keys: set[str] = set()
        seen = []
        for table in self.each:
            loaded = await table.load()
            keys |= await table.committer.sink.named_since(RETENTION)
            current = loaded.life == table.entry.life
            seen.append({p: place.seen for p, place in loaded.places.items()} if current else {})
        return KeptFiles(frozenset(keys), seen)


@asynccontextmanager
async def open_tables(
    store: Store,
    layout: ProcessorLayout,
    configured: Mapping[str, Any],
    *,
    schema: pa.Schema | None = None,
    only: str | None = None,
    others: Choice = "refuse",
) -> AsyncIterator[OpenTables]:
    """Open the registered tables of a processor.

    Args:
        configured: the sinks of the settings. A table that is not among them is opened by its registered URL.
        schema: see `TableSink.open`.
        only: the name of the only table to open.
        others: see `TableCommitter`.

    Raises:
        UsageError: one cannot be opened, so nobody can tell which files it names.
    """
    registry = await read_registry(store, layout.readers)
    entries = {name: entry for name, entry in registry.sinks.items() if entry.table and only in (None, name)}
    async with AsyncExitStack() as stack:
        opened: list[OpenTable] = []
        if entries:
            home = TableHome(store, layout, await dataset_identity(store, layout) or "")
            for name, entry in entries.items():
                opened.append(await _opened(stack, home, name, entry, configured.get(name, entry.url), schema, others))
        yield OpenTables(opened)


async def _opened(
    stack: AsyncExitStack, home: TableHome, name: str, entry: SinkEntry, given: Any, schema: pa.Schema | None,
    others: Choice,
) -> OpenTable:  # fmt: skip
    try:
        sink = _table(home, name, entry, given)
        if sink is not given:  # else a host uses it
            stack.push_async_callback(sink.close)
        committer = TableCommitter(name, sink, home, schema=schema, host="", log=logger, others=others)
        await committer.open()
    except Exception as error:  # whatever the table's client raises
        raise UsageError(
            f"table {name} ({entry.url}) cannot be asked which files it names: {format_error(error)}. Give its options "
            f"by the configuration (--config), or forget it: `actorproc sinks delete {name}`"
        ) from error
    return OpenTable(name, entry, committer)


def _table(home: TableHome, name: str, entry: SinkEntry, given: Any) -> TableSink:
    if isinstance(given, TableSink):
        return given
    sink = make_sink(name, given, processor=home.layout.processor, clock=home.store.clock)
    if not isinstance(sink, TableSink) or sink.url != entry.url:
        raise UsageError(f"the settings have {sink.url} under this name")
    return sink
