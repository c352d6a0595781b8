"""`log.json`: the partitions and the identity of a log."""

from __future__ import annotations

from typing import ClassVar

from actorproc.errors import UsageError
from actorproc.log.generations import Generations
from actorproc.runtime.error_text import safe_repr
from actorproc.storage.document import Document, SharedDocument
from actorproc.storage.listing import numbered_files
from actorproc.storage.locations import processors_at
from actorproc.storage.names import LOG_META, log_dir
from actorproc.storage.store import Conflict, Store

MAX_PARTITIONS = 100_000

_HOW_TO_CREATE = (
    "create it with Producer({url!r}, partitions=8), or with: actorproc produce --log {url} --partitions 8 FILE.jsonl"
)


class LogMetadata(Document, frozen=True):
    """The content of `log.json`. It is written once, and then by growths only.

    Format version 2: the log has grown. Versions that know only format version 1 would misplace records, and refuse it.
    """

    newest_format_version: ClassVar[int] = 2

    partitions: int
    """Partition count when the log was created."""
    grown: tuple[int, ...] = ()
    """Partition count after each growth."""
    growing: bool = False
    """Whether partitions of the generation before the newest one may not have ended yet."""
    by_key: bool = True
    """Whether the hash of its key names the partition of each record. False: producers choose it in other ways."""
    created: str = ""
    """The put-id of the first version; "": of this one."""

    @property
    def identity(self) -> str:
        """Differs from that of a log that is created later at the same place."""
        return self.created or self.put_id

    @property
    def generations(self) -> Generations:
        return Generations((self.partitions, *self.grown))

    @property
    def names(self) -> list[str]:
        """All partitions in order, also those that have ended."""
        return [str(number) for number in range(self.generations.total)]


def checked_partitions(partitions: object) -> int:
    """The number of partitions. Raises UsageError if it is not an int from 1 to `MAX_PARTITIONS`."""
    if type(partitions) is int and 1 <= partitions <= MAX_PARTITIONS:
        return partitions
    raise UsageError(f"partitions = {safe_repr(partitions)}: a whole number from 1 to {MAX_PARTITIONS:,}")


async def find_log(store: Store) -> LogMetadata | None:
    """The log in this store, if there is one."""
    return await SharedDocument(store, LOG_META, LogMetadata).read()


async def open_log(store: Store, *, instead: str = "", create: str = _HOW_TO_CREATE) -> LogMetadata:
    """The log in this store.

    Args:
        instead: the alternative that the caller accepts, for the error when a processor's container is found: text with
            `{container}` and `{processor}`.
        create: how to create a log, for the error when there is none: text with `{url}`.

    Raises:
        UsageError: there is no log in this store.
        CorruptObject: `log.json` is corrupt.
    """
    found = await find_log(store)
    if found is None:
        if (other := await processors_at(store)) is not None:
            accepted = instead.format(container=other.container, processor=other.processor)
            raise UsageError(f"{other.description}, and no log: give the log{accepted and f', or {accepted}'}")
        raise UsageError(f"there is no log at {store.url}: check the URL, or {create.format(url=store.url)}")
    return found


async def create_log(store: Store, partitions: int) -> LogMetadata:
    """Create the log, or open it if it exists with that number of partitions, or had it before it has grown.

    Raises:
        UsageError: it exists with another number of partitions, or the store holds processors or another dataset.
    """
    checked_partitions(partitions)
    document = SharedDocument(store, LOG_META, LogMetadata)
    found = await document.read()
    if found is None:
        # A log inside a container would be read as part of a processor, and the processor's objects as part of the log.
        if (other := await processors_at(store)) is not None:
            raise UsageError(f"{other.description}, where no log can be: give the log another place")
        if await numbered_files(store, log_dir("0"), limit=1):
            raise UsageError(
                f"{store.url} has no log.json, and files of another dataset, for example the output of a processor: "
                "give the log another place"
            )
        try:
            return await document.swap(LogMetadata(partitions=partitions))
        except Conflict:
            found = await open_log(store)
    if partitions not in (counts := found.generations.counts):
        raise UsageError(
            f"the log at {store.url} has {counts[-1]} partitions, not {partitions}. Leave the number out; or let the "
            f"log grow to a multiple of it: actorproc logs grow {store.url} --partitions N"
        )
    return found
