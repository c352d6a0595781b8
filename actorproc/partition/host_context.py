"""Objects that all partitions of a processor on one host share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.handler.base import PartitionHandler
from actorproc.handler.decoder import Decoder
from actorproc.handler.info import PartitionInfo
from actorproc.partition.dead_letter_summary import DeadLetterSummary
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.partition.hook_queue import HookQueue
from actorproc.partition.openings import Openings
from actorproc.partition.time_spent import HostTimes, ReadCosts
from actorproc.records import SEQUENCE, Batch
from actorproc.runtime.budget import BufferTotal, ByteBudget
from actorproc.runtime.changes import Changes
from actorproc.runtime.clock import Clock
from actorproc.runtime.nudge import Nudges
from actorproc.sinks.host_sinks import HostSinks
from actorproc.sinks.set_of_deliveries import Deliveries
from actorproc.sinks.tables.host_tables import HostTables
from actorproc.sources.protocol import Source, Start
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


@dataclass(frozen=True, slots=True)
class HostContext:
    """Objects that all partitions of a processor on one host share."""

    processor: str
    host: str
    handler: type[PartitionHandler]
    schema: pa.Schema
    source: Source
    store: Store
    layout: ProcessorLayout
    settings: Settings
    clock: Clock
    start: Start
    options: Any
    shared: Any
    budget: ByteBudget
    held: BufferTotal
    dead_letter_summary: DeadLetterSummary
    threads: HandlerThreads
    decoder: Decoder
    hooks: HookQueue
    start_from: str | None = None
    """Names another consumer of the source, whose positions come before `start`."""
    latest_partitions: frozenset[str] | None = None
    """With the start 'latest': the partitions of the first start. Those that came later begin with their first record.
    None: they are not known, and all begin at 'latest'."""
    processor_id: str = ""
    until_end: bool = False
    """The run ends once each partition has reached its end."""
    times: HostTimes = field(default_factory=HostTimes)
    costs: ReadCosts = field(default_factory=ReadCosts)
    openings: Openings = field(default_factory=Openings)
    changes: Changes = field(default_factory=Changes)
    """Names partitions that have processed or committed more, have failed, or were acquired or lost."""
    key_decoder: Decoder | None = None
    sinks: HostSinks | None = None
    nudges: Nudges = field(default_factory=Nudges)
    """Tell readers of the output of each commit."""

    @property
    def tables(self) -> HostTables | None:
        """The tables of this host; None: it has none."""
        return self.sinks.tables if self.sinks is not None and self.sinks.tables.each else None

    async def prepare(self, batch: Batch) -> None:
        """Fetch the schemas that decoding these records needs. Raises SourceError: they cannot be had now."""
        await self.decoder.prepare(batch.data.column("value"))
        if self.key_decoder is not None:
            await self.key_decoder.prepare(batch.data.column("key"))

    def deliveries(self, partition: str, log: Any, tell: Callable[..., None]) -> Deliveries:
        """The deliveries of a partition's commits to the sinks. `tell`: see `SinkDelivery`."""
        return Deliveries(self.sinks.deliveries(partition, log, tell) if self.sinks else ())

    def partition_info(self, partition: str, epoch: int, log: Any) -> PartitionInfo:
        """A partition as its handler sees it."""
        return PartitionInfo(
            self.processor, self.host, partition, epoch, options=self.options, shared=self.shared, log=log,
            decoder=self.decoder, key_decoder=self.key_decoder, processor_id=self.processor_id,
            output_schema=self.schema.remove(self.schema.get_field_index(SEQUENCE.name)),
        )  # fmt: skip
