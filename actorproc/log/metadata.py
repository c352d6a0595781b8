"""`log.json`: the number of partitions and the identity of a log."""

from __future__ import annotations

from typing import NamedTuple, Self

from actorproc.errors import UsageError
from actorproc.group.locations import processors_at
from actorproc.runtime.error_text import safe_repr
from actorproc.storage.document import check_types, document, to_document
from actorproc.storage.names import LOG_META
from actorproc.storage.store import Conflict, Store, Stored

MAX_PARTITIONS = 100_000


def checked_partitions(partitions: object) -> int:
    """Raises UsageError: it is no possible number of partitions."""
    if type(partitions) is int and 1 <= partitions <= MAX_PARTITIONS:
        return partitions
    raise UsageError(f"partitions = {safe_repr(partitions)}: a whole number from 1 to {MAX_PARTITIONS:,}")


class LogMeta(NamedTuple):
    """What `log.json` says. `identity` tells this log from one that is made later at the same place."""

    partitions: int
    identity: str

    @classmethod
    def of(cls, stored: Stored) -> Self:
        with document(LOG_META, stored.body, "description of a log") as fields:
            check_types(fields, {"partitions": (int,), "put_id": (str,)})
            return cls(fields["partitions"], fields["put_id"])


async def find_log(store: Store) -> LogMeta | None:
    """The log that is there, if there is one."""
    stored = await store.get(LOG_META)
    return None if stored is None else LogMeta.of(stored)


HOW_TO_CREATE = (
    "create it with Producer({url!r}, partitions=8), or with: actorproc produce --log {url} --partitions 8 FILE.jsonl"
)


async def open_log(store: Store, *, instead: str = "", create: str = "") -> LogMeta:
    """The log that is there.

    Args:
        instead: what else the caller takes, where a processor is there: text with `{container}` and `{processor}`.
        create: how a log is made there: text with `{url}`. Who only reads, or deletes, rather has the URL wrong.

    Raises:
        UsageError: there is no log at this place.
        CorruptObject: what is there is no log.
    """
    found = await find_log(store)
    if found is None:
        if (other := await processors_at(store)) is not None:
            taken = instead.format(container=other.container, processor=other.processor)
            raise UsageError(f"{other.what}, and no log: give the log{taken and f', or {taken}'}")
        how = create.format(url=store.url) or "check where it is"
        raise UsageError(f"there is no log at {store.url}: {how}")
    return found


async def create_log(store: Store, partitions: int) -> LogMeta:
    """Create the log, or find it with that number of partitions, which never changes.

    Raises:
        UsageError: it is there with another number; or the place belongs to processors.
    """
    checked_partitions(partitions)
    stored = await store.get(LOG_META)
    if stored is None:
        # A log among processors, or inside one, would be taken for what they keep, and they for the log's.
        if (other := await processors_at(store)) is not None:
            raise UsageError(f"{other.what}, and no place for a log: give it one of its own")
        meta = LogMeta(partitions, store.clock.nonce())
        try:
            await store.create(LOG_META, to_document({"partitions": meta.partitions, "put_id": meta.identity}))
            return meta
        except Conflict as conflict:
            stored = conflict.stored or Stored(b"", "", 0)
    found = LogMeta.of(stored)
    if found.partitions != partitions:
        raise UsageError(
            f"the log at {store.url} has {found.partitions} partitions, not {partitions}; the number never changes, "
            "since keys would move. Leave it out, or produce to a new log"
        )
    return found
