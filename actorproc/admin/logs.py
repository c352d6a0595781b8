"""Built-in logs as a whole: list, describe, grow, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from actorproc.admin.audit import record_now
from actorproc.admin.objects import Amount, amount, delete_all, entries_below
from actorproc.errors import UsageError
from actorproc.log.generations import Generations
from actorproc.log.metadata import find_log, open_log
from actorproc.log.positions import newest_segment
from actorproc.produce.growth import check_growth, grow_log
from actorproc.retention.readers import read_registry
from actorproc.runtime.tasks import gather
from actorproc.storage.locations import folders_with
from actorproc.storage.names import AUDIT, LOG_META, READERS, log_dir, named_partitions
from actorproc.storage.store import Store


class LogPartition(NamedTuple):
    """`end`: sequence that the next record gets. `followed_by`: the partitions after this one, if the log has grown."""

    partition: str
    end: int
    stored: Amount
    followed_by: Sequence[str]


class LogDescription(NamedTuple):
    """A log, its partitions by number, and the names of its registered readers.

    `growing`: a growth was begun, and is not complete.
    """

    identity: str
    partitions: Sequence[LogPartition]
    readers: Sequence[str]
    growing: bool


class Growth(NamedTuple):
    """The partitions that end when a log grows, and those that follow them. None if there is nothing to do."""

    ends: Sequence[str]
    begins: Sequence[str]


async def list_logs(store: Store) -> list[str]:
    """Folders of the store that are logs; "" if the store itself is one."""
    found = [""] if await find_log(store) is not None else []
    return found or sorted([folder async for folder in folders_with(store, LOG_META)])


async def describe_log(store: Store) -> LogDescription:
    """Some requests for each partition.

    Raises:
        UsageError: there is no log in this store.
    """

    async def describe(partition: str) -> LogPartition:
        newest = await newest_segment(store, partition)
        stored = amount(await entries_below(store, log_dir(partition)))
        followed_by = [str(number) for number in log.generations.children(int(partition))]
        return LogPartition(partition, 0 if newest is None else newest[1], stored, followed_by)

    log = await open_log(store)
    found = await gather(log.names, describe)
    readers = sorted((await read_registry(store, READERS)).readers)
    return LogDescription(log.identity, list(found.values()), readers, log.growing)


async def plan_growth(store: Store, partitions: int) -> Growth:
    """The effect of `grow_log`, without changing anything.

    Raises:
        UsageError: there is no log, or its partition count cannot become that.
    """
    found = await open_log(store)
    counts = found.generations.counts
    if check_growth(store, found, partitions) != counts[-1]:
        counts = (*counts, partitions)
    elif not found.growing:
        return Growth((), ())
    after = Generations(counts)
    return Growth([str(number) for number in after.before], [str(n) for n in range(after.first, after.total)])


async def grow(store: Store, partitions: int, *, by_key: bool = True) -> None:
    """`grow_log`, recorded in the audit of the log."""
    planned = await plan_growth(store, partitions)
    await grow_log(store, partitions, by_key=by_key)
    if planned.begins:
        effect = f"{named_partitions(planned.ends)} end, {named_partitions(planned.begins)} follow"
        await record_now(store, AUDIT, "grow", {"partitions": str(partitions)}, effect)


async def delete_log(store: Store) -> Amount:
    """Delete a log and everything beside it in its folder. If it is interrupted, call it again. Stop producers before.

    Only its audit stays, which says then that it was deleted.

    Raises:
        UsageError: there is no log in this store, or it has registered readers.
    """
    await open_log(store)
    if readers := sorted((await read_registry(store, READERS)).readers):
        raise UsageError(
            f"the log at {store.url} has registered readers: {', '.join(readers)}. Remove them first, with "
            f"`actorproc readers remove READER --log {store.url}`"
        )
    entries = [entry for entry in await entries_below(store, "") if not entry.key.startswith(AUDIT)]
    await delete_all(store, [entry.key for entry in entries if entry.key != LOG_META])
    await store.delete(LOG_META)
    deleted = amount(entries)
    effect = f"objects deleted: {deleted.objects:,}, {deleted.bytes:,} bytes"
    await record_now(store, AUDIT, "delete log", {}, effect)
    return deleted
