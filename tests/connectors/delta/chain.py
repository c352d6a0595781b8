"""A chain that a test extends itself, without hosts: its commits, checkpoints and heartbeats."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from msgspec.structs import replace

from actorproc.counts import Counts
from actorproc.group.heartbeat import Heartbeat
from actorproc.group.reports import HostReport, PartitionReport
from actorproc.output.chain import Commit, OutputChain, encode_commit
from actorproc.output.checkpoint import Checkpoint
from actorproc.output.schema_document import agree_on_schema
from actorproc.output.source_identity import agree_on_source, dataset_identity
from actorproc.records import Cursor
from actorproc.rows.output_schema import output_schema, parse_schema
from actorproc.sinks.entries import register_sink
from actorproc.storage.document import SharedDocument
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

SCHEMA = output_schema(parse_schema("n long"))


class Chain:
    """The chains of some partitions, with a table `delta` that is registered as `table`."""

    def __init__(self, store: Store, layout: ProcessorLayout, partitions: int) -> None:
        self.store, self.layout = store, layout
        self.ends = [0] * partitions
        self._rows = [0] * partitions
        self._beats = 0

    async def prepare(self) -> str:
        """Returns the identity of the processor."""
        await agree_on_source(self.store, self.layout, "memory:", "memory", "memory", None)
        await agree_on_schema(self.store, self.layout, parse_schema("n long"))
        await register_sink(self.store, self.layout, "table", "delta", {}, table="within")
        return await dataset_identity(self.store, self.layout) or ""

    async def commit(self, p: int, rows: Sequence[int], *, checkpoint: bool = True) -> None:
        """One more commit of partition `p`.

        Args:
            checkpoint: whether its owner writes the checkpoint after it.
        """
        number, clock = self.ends[p], self.store.clock
        table = pa.table({"n": rows, "_sequence": [number] * len(rows)}, schema=SCHEMA)
        totals = Counts(number + 1, self._rows[p] + len(rows))
        commit = Commit(
            host="h", epoch=1, first=Cursor(str(number), number - 1), next=Cursor(str(number + 1), number),
            totals=totals, time=clock.wall(), rows=len(rows), put_id=clock.nonce(),
        )  # fmt: skip
        body, _ = encode_commit(table, commit, b"")
        await OutputChain(self.store, self.layout, str(p)).create(number, commit.put_id, body, ())
        self.ends[p], self._rows[p] = number + 1, totals.rows
        if checkpoint:
            after = Checkpoint(1, number + 1, commit.next, totals, time=commit.time)
            document = SharedDocument(self.store, self.layout.checkpoint(str(p)), Checkpoint)
            await document.change(lambda found: after if found is None else replace(after, put_id=found.put_id))

    async def beat(self) -> None:
        """The heartbeat of the host that owns all partitions."""
        self._beats += 1
        progress = {
            str(p): PartitionReport(1, sequence=end - 1, totals=(end, self._rows[p])) for p, end in enumerate(self.ends)
        }
        beat = Heartbeat(
            host="h", incarnation="1234-f1-60s", address=None, pid=1, started=0.0, time=self.store.clock.wall(),
            beat=self._beats, report=HostReport(progress=progress),
        )  # fmt: skip
        await self.store.put(self.layout.host(beat.host, beat.incarnation), beat.to_json())
