"""`verify`: reads everything that a processor has stored, and its log, and lists the missing and altered objects."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

from actorproc.admin.damage import Damage, Verification
from actorproc.admin.verify_log import verify_log
from actorproc.admin.verify_output import PartitionCheck
from actorproc.admin.verify_tables import verify_tables
from actorproc.errors import CorruptObject
from actorproc.group.heartbeat import Heartbeat, incarnation_of
from actorproc.group.membership import read_group
from actorproc.output.schema_document import read_schema
from actorproc.output.source_identity import dataset_identity
from actorproc.retention.readers import read_registry
from actorproc.runtime.tasks import gather
from actorproc.sinks.tables.open_tables import open_tables
from actorproc.storage.listing import documents
from actorproc.storage.names import ProcessorLayout, natural, partition_of
from actorproc.storage.store import Store

_AT_ONCE = 4  # partitions: each holds a file in memory


async def verify(
    store: Store, layout: ProcessorLayout, log: Store | None = None, sinks: Mapping[str, Any] | None = None
) -> Verification:
    """Read every object of the processor once, and of the log that is its source. Compare its tables. Hosts may run.

    Args:
        sinks: the configured ones: options of tables.

    Raises:
        UsageError: there is no log in `log`.
        StoreError: an object cannot be read.
    """
    result = Verification()
    await _check_documents(store, layout, result)
    names = await _partitions(store, layout)
    checks = [PartitionCheck(store, layout, partition, result) for partition in names]
    for first in range(0, len(checks), _AT_ONCE):
        await gather(checks[first : first + _AT_ONCE], PartitionCheck.run)
    result.checked["partitions"] = len(names)
    async with open_tables(store, layout, sinks or {}) as tables:
        await verify_tables(store, layout, tables, result)
    if log is not None:
        ends = await verify_log(log, result)
        _compare(layout, dict(zip(names, checks, strict=True)), ends, result)
    return result


async def repair(result: Verification) -> list[Damage]:
    """Repair the damages whose repair is safe. Returns the others."""
    left = []
    for damage in result.damages:
        if damage.repair is None:
            left.append(damage)
        else:
            await damage.repair()
    return left


async def _partitions(store: Store, layout: ProcessorLayout) -> list[str]:
    """All partitions of which anything is stored."""
    names = set(await documents(store, layout.checkpoints)) | set(await documents(store, layout.boundaries))
    for folder in (layout.output, layout.compacted, layout.dead_letters):  # the first has those within
        names |= {partition_of(entry.key) for entry in (await store.list(folder)).entries if "/partition=" in entry.key}
    return sorted(names, key=natural)


async def _check_documents(store: Store, layout: ProcessorLayout, result: Verification) -> None:
    async def sound(read: Awaitable[Any]) -> None:
        try:
            await read
        except CorruptObject as error:
            result.found(Damage.of(error))

    await sound(read_group(store, layout))
    await sound(read_schema(store, layout))
    await sound(dataset_identity(store, layout))
    await sound(read_registry(store, layout.readers))
    for entry in (await store.list(layout.hosts)).entries:
        stored = await store.get(entry.key) if incarnation_of(entry.key) else None
        try:
            if stored is not None:
                Heartbeat.from_json(entry.key, stored.body)
        except CorruptObject:
            result.found(
                Damage(
                    entry.key,
                    "is not a valid heartbeat",
                    "--repair deletes it: a live host writes it again",
                    partial(store.delete, entry.key),
                )
            )


def _compare(
    layout: ProcessorLayout, checks: Mapping[str, PartitionCheck], ends: Mapping[str, int], result: Verification
) -> None:
    """Check that the log has the records that the checkpoints have passed."""
    for partition, check in checks.items():
        end = ends.get(partition)
        if end is not None and check.checkpoint is not None and check.checkpoint.cursor.sequence >= end:
            at = check.checkpoint.cursor.sequence
            result.found(
                Damage(
                    layout.checkpoint(partition),
                    f"says that records up to {at} are processed, but the log ends at {end}",
                    "restore the newest files of the log, or the checkpoint",
                )
            )
