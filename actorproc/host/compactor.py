"""Compacts the output from time to time, at one host of the group. Two hosts at once cost work, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actorproc.errors import ActorprocError, CorruptObject
from actorproc.output.compact_output import Compaction, compact_output
from actorproc.output.compaction import plan
from actorproc.output.row_reader import partitions_with_state
from actorproc.output.schema_document import read_schema
from actorproc.partition.host_context import HostContext
from actorproc.retention.boundary import RETENTION
from actorproc.rows.output_schema import output_schema
from actorproc.runtime.error_text import format_error
from actorproc.sinks.tables.open_tables import open_tables

TABLE_INTERVAL = 3600.0
"""Seconds between two compactions if a sink is a table, and the setting says nothing."""

_YOUNGEST = 60.0
"""Age of the commits that are compacted, in seconds: the owner may still walk over newer ones, and readers wait for
them."""


def interval_of(context: HostContext) -> float:
    """Seconds between two compactions; 0: never."""
    chosen = context.settings.compact_interval
    return (TABLE_INTERVAL if context.tables is not None else 0.0) if chosen is None else chosen


class Compactor:
    """Merges small files into large ones, when it is this host's turn.

    Args:
        log: bound to processor and host.
    """

    def __init__(self, context: HostContext, log: Any) -> None:
        self._context, self._logger = context, log

    async def run(self, is_first: Callable[[], bool]) -> None:
        """Compact again and again, until cancelled. Errors are logged, and tried again at the next turn."""
        while True:
            await self._context.clock.sleep(self._context.clock.jitter(interval_of(self._context)))
            if is_first():
                try:
                    await self._compact()
                except (ActorprocError, OSError) as error:
                    self._logger.warning("compaction.failed", error=format_error(error))

    async def _compact(self) -> None:
        store, layout, settings = self._context.store, self._context.layout, self._context.settings
        partitions = await partitions_with_state(store, layout)
        found = Compaction.of(
            await plan(store, layout, partitions, target_size=settings.compact_size, older_than=_YOUNGEST)
        )
        declared = await read_schema(store, layout)  # after the listing: hosts of a newer version may have more columns
        if declared is None:
            raise CorruptObject(layout.schema, "is missing; every processor writes it as it starts", store.url)
        configured = self._context.sinks.configured if self._context.sinks is not None else {}
        async with open_tables(store, layout, configured) as tables:
            await compact_output(
                store, layout, found, output_schema(declared), keep=RETENTION, kept=tables.kept_now,
                at_once=1,
            )  # fmt: skip
        if found.changed:
            self._logger.info(
                "compaction.done",
                files=found.files_before,
                into=found.files_after,
                rows=found.rows,
                deleted=found.swept,
            )  # fmt: skip
        found.raise_failed()
