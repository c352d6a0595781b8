"""Backend that checks the invariants at each write that the store applies."""

from __future__ import annotations

from collections.abc import Callable

from actorproc.errors import ConditionFailed
from actorproc.group.heartbeat import incarnation_of
from actorproc.group.membership import GroupDocument
from actorproc.output.checkpoint import Checkpoint
from actorproc.retention.boundary import Boundary
from actorproc.retention.readers import Registry
from actorproc.simulation.database import NAME
from actorproc.simulation.faults import current_sender
from actorproc.simulation.group_checks import GroupChecks
from actorproc.simulation.loop import current_loop
from actorproc.simulation.output_checks import OutputChecks
from actorproc.simulation.sink_checks import SinkChecks
from actorproc.simulation.split_checks import SplitChecks
from actorproc.simulation.streams import KnownStream
from actorproc.sinks.entries import SinkProgress
from actorproc.storage.backend import Backend, Listing, Stored
from actorproc.storage.names import ProcessorLayout, document_partition, number_of, partition_of


class CheckedStore(Backend):
    """Passes requests on to `truth`, and each write that was applied to the checks.

    Args:
        partition: returns the checks of a partition.
        stream: gets the writes that are not the processor's.
        splits: checks the group documents, too.
        sinks: checks the delivery to a sink, if there is one.
    """

    def __init__(
        self,
        truth: Backend,
        layout: ProcessorLayout,
        group: GroupChecks,
        partition: Callable[[str], OutputChecks],
        stream: KnownStream,
        splits: SplitChecks,
        sinks: SinkChecks | None,
    ) -> None:
        self.url = truth.url
        self._truth = truth
        self._layout = layout
        self._group = group
        self._partition = partition
        self._stream = stream
        self._splits = splits
        self._sinks = sinks

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        return await self._truth.get(key, unless=unless, tail=tail)

    async def put(self, key: str, body: bytes) -> str:
        existed = await self._truth.get(key) is not None
        tag = await self._truth.put(key, body)
        self._written(key, body, existed)
        return tag

    async def put_if_absent(self, key: str, body: bytes) -> str:
        try:
            tag = await self._truth.put_if_absent(key, body)
        except ConditionFailed:
            await self._refused(key, body)
            raise
        self._written(key, body, False)
        return tag

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        tag = await self._truth.put_if_match(key, body, tag)
        self._written(key, body, True)
        return tag

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        return await self._truth.list(prefix, after, limit)

    async def delete(self, key: str) -> None:
        await self._truth.delete(key)
        if key.startswith(self._layout.output):
            self._partition(partition_of(key)).output_deleted(number_of(key))
        elif key.startswith(self._layout.hosts) and (who := incarnation_of(key)):
            self._group.heartbeat_deleted(who)

    async def _refused(self, key: str, body: bytes) -> None:
        stored = await self._truth.get(key)
        if key.startswith(self._layout.output) and stored is not None and stored.body != body:
            self._partition(partition_of(key)).seen["refused"] += 1
        elif key.startswith(self._layout.dead_letters):
            self._partition(partition_of(key)).letters_refused(number_of(key), body)

    def _written(self, key: str, body: bytes, existed: bool) -> None:
        layout, now = self._layout, current_loop().now
        if key.startswith(layout.output):
            self._partition(partition_of(key)).output_written(number_of(key), body, existed)
            if self._sinks is not None:
                self._sinks.output_written(partition_of(key), number_of(key), body)
        elif key.startswith(layout.dead_letters):
            self._partition(partition_of(key)).letters_written(number_of(key), body, existed)
        elif key.startswith(layout.checkpoints):
            self._partition(document_partition(key)).checkpoint_written(Checkpoint.from_json(key, body))
        elif key.startswith(layout.boundaries):
            self._partition(document_partition(key)).boundary_written(Boundary.from_json(key, body))
        elif key.startswith(layout.hosts) and (who := incarnation_of(key)):
            self._group.heartbeat_written(who, now)
        elif key == layout.group and (sender := current_sender.get()):
            document = GroupDocument.from_json(key, body)
            self._group.group_written(document, now, *sender)
            self._splits.group_written(document)
        elif self._sinks is not None and key == layout.readers:
            self._sinks.registry_written(Registry.from_json(key, body))
        elif self._sinks is not None and key.startswith(f"{layout.sinks}{NAME}/"):
            self._sinks.progress_written(document_partition(key), SinkProgress.from_json(key, body))
        else:
            self._stream.written(key, body, existed)
