"""Where a partition without a checkpoint begins, and whether the source still fits the checkpoint of another."""

from __future__ import annotations

from collections.abc import Mapping

from actorproc.errors import RESTORE, CorruptObject, SourceError, StoreError
from actorproc.output.checkpoint import Checkpoint
from actorproc.partition.handler_hooks import in_time
from actorproc.partition.host_context import HostContext
from actorproc.records import Cursor
from actorproc.sources.protocol import first_position, list_partitions, with_deadline


async def start_position(context: HostContext, partition: str, parents: Mapping[str, Checkpoint]) -> str:
    """The position at which a partition without a checkpoint begins.

    Args:
        parents: checkpoints of the partitions that it follows, as far as they were processed.

    Raises:
        PartitionGone: the source has forgotten the partition.
        PartitionStuck: the source takes too long.
    """
    async with in_time(context.settings, "start() of the source has not ended", "infrastructure"):
        known = context.latest_partitions
        came_later = known is not None and partition not in known
        ends = {name: kept.cursor for name, kept in parents.items()}
        if ends and (position := await context.source.start_after(partition, ends)) is not None:
            return position
        return await first_position(context.source, partition, context.start, context.start_from, came_later=came_later)


async def check_source_has(context: HostContext, partition: str, cursor: Cursor) -> None:
    """Check that the source has the records up to `cursor`: new ones would be passed over as processed.

    Positions that contain sequences show it without a request.

    Raises:
        CorruptObject: the source ends before them.
    """
    source, sequence = context.source, cursor.sequence
    before = source.sequence_before(partition, cursor.position) if sequence >= 0 else None
    if sequence < 0 or (before is not None and sequence <= before):
        return
    try:
        async with in_time(context.settings, "end() of the source has not ended", "infrastructure"):
            newest = (await source.end(partition)).sequence
    except (SourceError, StoreError):
        return  # reading shows whether the source is there
    if newest is not None and newest < sequence:
        raise CorruptObject(
            context.layout.checkpoint(partition),
            f"says that records up to {sequence} are processed, but the source ends at {newest}: the checkpoint "
            f"was changed, or the source has lost records. {RESTORE.capitalize()}",
        )


async def is_followed(context: HostContext, partition: str) -> bool:
    """Whether a partition is listed that follows this one, which the source does not list any more."""
    listed = await with_deadline(list_partitions(context.source), "partitions", context.store.limits, retries=False)
    return partition not in listed and any(partition in parents for parents in listed.values())
