"""Growth of a log: the next generation of partitions is named, and then each partition of the one before ends.

`log.json` says first which partitions follow. Then each partition ends with a seal: a file without records, at its next
number, where either it or the append of a producer is created. Each step may be done again, by anybody. See
docs/protocol.md and tests/protocol/grow_model.py.
"""

from __future__ import annotations

from msgspec.structs import replace

from actorproc.errors import UsageError
from actorproc.log.metadata import LogMetadata, checked_partitions, open_log
from actorproc.produce.appender import Appender
from actorproc.produce.hint_writer import HintWriter
from actorproc.runtime.tasks import gather
from actorproc.storage.document import SharedDocument
from actorproc.storage.names import LOG_META
from actorproc.storage.store import Store

_PATIENCE = 120.0  # seconds for the end of one partition

_FORMAT = 2  # of a `log.json` with growths


def check_growth(store: Store, found: LogMetadata, partitions: object) -> int:
    """The partition count to which the log can grow. Raises UsageError if it cannot."""
    wanted, count = checked_partitions(partitions), found.generations.count
    if wanted % count:
        raise UsageError(
            f"partitions = {wanted}: the log at {store.url} has {count}, and grows to a multiple of that, such as "
            f"{2 * count}, so that records of a key stay in order"
        )
    return wanted


async def grow_log(store: Store, partitions: int, *, by_key: bool = True) -> LogMetadata:
    """Let the log grow to so many partitions. If it was interrupted, call it again.

    Producers, hosts and other growths may run meanwhile. A log that has so many partitions stays as it is.

    Args:
        by_key: whether the hash of its key names the partition of each record. False: producers choose partitions in
            other ways, so keyed state goes whole to each partition that follows.

    Raises:
        UsageError: there is no log, or its partition count cannot become that.
        StoreUnavailable: the outcome is unknown.
    """
    document = SharedDocument(store, LOG_META, LogMetadata)

    def name(found: LogMetadata | None) -> LogMetadata | None:
        if found is None or found.growing or check_growth(store, found, partitions) == found.generations.count:
            return found
        return replace(
            found,
            format_version=_FORMAT,
            grown=(*found.grown, partitions),
            growing=True,
            by_key=found.by_key and by_key,
            created=found.identity,
        )

    check_growth(store, await open_log(store), partitions)
    while (named := await document.change(name)) is not None and named.growing:
        await _complete(store, document, named)
    return await open_log(store)


async def _complete(store: Store, document: SharedDocument[LogMetadata], named: LogMetadata) -> None:
    """End all partitions of the generation before the newest one, and say so in `log.json`."""
    async with HintWriter.running(store) as hints:
        await gather([str(number) for number in named.generations.before], lambda name: seal(store, hints, name))

    def complete(found: LogMetadata | None) -> LogMetadata | None:
        return replace(found, growing=False) if found is not None and found.grown == named.grown else found

    await document.change(complete)


async def seal(store: Store, hints: HintWriter, partition: str) -> None:
    """End a partition, unless it has ended.

    Raises:
        StoreUnavailable: it may have ended, or not.
    """
    clock, known = store.clock, hints.newest.get(partition, 0)
    appender = Appender(store, partition, hints.producer, compression="none", hint=known, clock=clock)
    await hints.begin()
    base: int | None = None
    try:
        base = await appender.seal(clock.monotonic() + _PATIENCE)
    finally:
        hints.end(partition, base)
