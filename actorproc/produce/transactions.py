"""Transactions: append staged records to the log, all of them and each once, although drivers are killed.

A transaction has a name, and batches with growing numbers. Before anything is appended, one document decides the
content of a batch, and the base at which the first segment of each partition is tried. Every driver that continues the
batch appends this content, even if it has staged other files itself.

A base is left only after a valid segment of another producer was found there, and the document moves on by
compare-and-swap before anything is sent to the next base. So all lower bases are settled, and each segment is appended
once. See docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar, NamedTuple, Self

import pyarrow as pa
from msgspec.structs import force_setattr, replace

from actorproc.errors import CorruptObject, SourceError, StoreError, UsageError
from actorproc.log.generations import Generations
from actorproc.log.metadata import open_log
from actorproc.log.positions import first_base, log_end
from actorproc.log.segment import SegmentFooter, create_segment, encode_segment, newest_timestamp
from actorproc.produce.appender import PartitionEnded
from actorproc.produce.growth import seal
from actorproc.produce.hint_writer import HintWriter
from actorproc.produce.routes import moved
from actorproc.produce.staged_files import StagedFile, decode_staged
from actorproc.retention.boundary import read_boundary
from actorproc.runtime.logger import get_logger
from actorproc.runtime.tasks import gather
from actorproc.storage.document import Document, SharedDocument
from actorproc.storage.names import (
    LOG_META,
    LOG_STAGED,
    batch_of_staged,
    folder_of,
    log_boundary,
    log_file,
    log_transaction,
)
from actorproc.storage.store import Conflict, Store

GROUP_BYTES = 64 * 2**20
"""Bytes of staged records that are in memory at once. They become one segment for each partition."""

ABANDONED_AFTER = 7 * 86_400.0
"""Age in seconds at which staged files are deleted, unless an unfinished transaction needs them."""

UNNAMED = "job-"
"""Prefix of the names of transactions that are never run again."""

_COMPRESSION = "zstd"  # in every release: a step that is repeated must make the same bytes

logger = get_logger(__name__)


class PartitionProgress(NamedTuple):
    """Segments of groups below `group` are in the log. That of `group` is tried at `base` and nowhere else."""

    group: int
    base: int
    running: int
    """The greatest timestamp below `base`, in microseconds since 1970."""


class Transaction(Document, frozen=True):
    """The stored state of a transaction: its latest batch and, unless that is `done`, the work that is left."""

    newest_format_version: ClassVar[int] = 4

    batch: int
    done: bool
    batch_id: str = ""
    """The put-ids of the batch's segments begin with it."""
    groups: tuple[tuple[str, ...], ...] = ()
    """Keys of the staged files; those of a group are appended together."""
    shares: Mapping[str, PartitionProgress] = {}
    """Progress by partition."""
    moved: Mapping[str, int] = {}
    """Partition that has ended -> the first group whose records go to the partitions that follow it. In format 3."""
    note: str = ""
    """Text of the caller's, which the batch has set. In format 4."""

    def __post_init__(self) -> None:
        if self.format_version == 1:  # in that format the put-id named the batch
            force_setattr(self, "batch_id", self.batch_id or self.put_id)
            force_setattr(self, "format_version", 2)


class NoteMoved(Exception):
    """The note is not the one that a batch expects. Nothing of the batch is in the log."""


class _Segment(NamedTuple):
    """A segment to append. `newest`: its greatest timestamp, in microseconds since 1970."""

    put_id: str
    body: bytes
    rows: int
    newest: int


class Transactions:
    """The transactions of one log, whose store is open.

    Raises (every method):
        StoreUnavailable: the outcome is unknown; run it again to go on.
        CorruptObject: an object that is needed is corrupt or gone.
    """

    def __init__(self, store: Store, hints: HintWriter) -> None:
        self._store = store
        self._hints = hints

    @classmethod
    @asynccontextmanager
    async def opened(cls, store: Store) -> AsyncIterator[Self]:
        """Write hints for the log's readers as long as the block runs.

        Raises:
            UsageError: there is no log.
        """
        await open_log(store)
        async with HintWriter.running(store) as hints:
            yield cls(store, hints)

    async def commit(self, name: str, batch: int, staged: Sequence[StagedFile], *, in_turn: bool = False) -> None:
        """Append the batch once. If it was begun before, with other staged files, those are appended instead.

        Args:
            batch: a batch that is not greater than the latest one is in the log already, and nothing is done.
            staged: in the order in which the records are appended.
            in_turn: only the latest batch may be run again. For a lower one a SourceError is raised.

        Raises:
            UsageError: the staged files are not in this store.
            SourceError: `in_turn`, and a later batch is in the log. The caller was restored from an older state.
        """
        document = SharedDocument(self._store, log_transaction(name), Transaction)
        await document.read()
        planned: str | None = None
        while (found := document.current) is None or not found.done or found.batch < batch:
            try:
                if found is None or found.done:
                    await self._check_staged(staged)
                    planned = (await document.swap(await self._plan(batch, staged))).batch_id
                    continue
                if found.batch_id != planned:
                    await self._check_not_trimmed(document.key, found)
                await self._finish(document, found)
                logger.debug("log.transaction_done", transaction=name, batch=found.batch)
            except Conflict:
                await document.read()
            except (CorruptObject, UsageError):
                now = await document.read()
                if now is None or now == found:
                    raise
                # Another driver has gone on meanwhile, and has deleted files that it does not need any more.
        if in_turn and found.batch > batch:
            raise SourceError(
                f"micro-batch {batch} is to be appended to {self._store.url}, and {found.batch} of the same "
                "query is there already: its checkpoint was restored from an older copy, or the query runs somewhere "
                "else, too. Under these numbers are other rows by now. Restore the newest checkpoint, or begin with a "
                "new checkpointLocation"
            )
        await self._delete_staged(name, batch)

    async def note(self, name: str) -> str:
        """The note of the latest batch, once all of that is in the log; "": there is none."""
        found = await self._settled(SharedDocument(self._store, log_transaction(name), Transaction))
        return "" if found is None else found.note

    async def commit_if(
        self, name: str, was: str, now: str, stage: Callable[[int], Awaitable[Sequence[StagedFile]]]
    ) -> None:
        """Append a batch once, and replace the note, if that is `was`. One write decides both.

        Args:
            stage: stages the records for the batch of this number.

        Raises:
            NoteMoved: the note is another one.
        """
        document = SharedDocument(self._store, log_transaction(name), Transaction)
        found = await self._settled(document)
        if (found.note if found else "") != was:
            raise NoteMoved
        batch = found.batch + 1 if found else 0
        staged = await stage(batch)
        try:
            planned = replace(await self._plan(batch, staged), note=now, format_version=4)
            decided = await document.swap(planned)
        except Conflict:
            await gather([file.key for file in staged], self._store.delete)
            raise NoteMoved from None
        if not decided.done:
            try:
                await self._finish(document, decided)
            except Conflict:
                await self._settled(document)  # somebody else goes on with it
        await self._delete_keys([file.key for file in staged], name)

    async def _settled(self, document: SharedDocument[Transaction]) -> Transaction | None:
        """The document, once its latest batch is in the log."""
        await document.read()
        while (found := document.current) is not None and not found.done:
            try:
                await self._check_not_trimmed(document.key, found)
                await self._finish(document, found)
                await self._delete_keys([key for group in found.groups for key in group], document.key)
            except Conflict:
                await document.read()
            except CorruptObject:
                now = await document.read()
                if now is None or now == found:
                    raise
                # Another driver has gone on meanwhile, and has deleted files that it does not need any more.
        return document.current

    async def sweep(self) -> None:
        """Delete staged files that are a week old and that nobody needs."""
        await self._delete_staged("", -1)

    async def _delete_keys(self, keys: Sequence[str], name: str) -> None:
        try:
            await gather(keys, self._store.delete)
        except StoreError as error:  # they are deleted when they are a week old
            logger.warning("log.staged_not_removed", transaction=name, error=str(error))

    async def _check_staged(self, staged: Sequence[StagedFile]) -> None:
        """Once a batch is decided, its staged files must be found. Raises UsageError if some are not."""
        folders = {folder_of(file.key) for file in staged}
        listings = (await gather(sorted(folders), self._store.list)).values()
        found = {entry.key for listing in listings for entry in listing.entries}
        if missing := sum(file.key not in found for file in staged):
            raise UsageError(
                f"{missing} of {len(staged)} objects that tasks have staged for {self._store.url} are not there for "
                "the driver: every machine must reach the log at this URL, in a bucket or in a folder that all of "
                "them share"
            )

    async def _plan(self, batch: int, staged: Sequence[StagedFile]) -> Transaction:
        partitions = sorted({str(partition) for file in staged for partition in file.partitions}, key=int)
        shares = await gather(partitions, lambda partition: self._at_end(partition, 0))
        batch_id = self._store.clock.nonce()
        return Transaction(batch=batch, done=not staged, batch_id=batch_id, groups=_grouped(staged), shares=shares)

    async def _at_end(self, partition: str, group: int, hint: int = 0) -> PartitionProgress:
        end = await log_end(self._store, partition, max(hint, self._hints.newest.get(partition, 0)))
        return PartitionProgress(group, end.base, end.running)

    async def _check_not_trimmed(self, key: str, found: Transaction) -> None:
        """A segment of this batch that was appended, read and trimmed would be appended again: refuse that."""

        async def check(partition: str) -> None:
            base = found.shares[partition].base
            lowest = (await read_boundary(self._store, log_boundary(partition))).lowest
            first = await first_base(self._store, partition, max(base, lowest))  # segments below `lowest` are void
            if first not in (None, base):
                raise CorruptObject(
                    key,
                    f"batch {found.batch} is unfinished, and partition {partition} has lost its files from {base} on "
                    f"(the next begin at {first}): nobody can tell what is appended. Restore them, or delete this "
                    "object, and with it the records that are not appended yet",
                )

        await gather(list(found.shares), check)

    async def _finish(self, document: SharedDocument[Transaction], found: Transaction) -> None:
        """Append the segments that are not in the log yet, and mark the batch as done.

        Raises:
            Conflict: another driver was first.
        """
        shares = dict(found.shares)
        generations = await self._end_ancestors(shares)
        for group, keys in enumerate(found.groups):
            segments: Mapping[str, _Segment] | None = None
            while waiting := {name: share for name, share in shares.items() if share.group == group}:
                if segments is None:
                    segments = await self._load(keys, found, group, shares, generations)
                progress = await self._append(waiting, segments)
                shares |= {name: share for name, share in progress.items() if share is not None}
                if ended := [name for name, share in progress.items() if share is None]:
                    generations = (await open_log(self._store)).generations
                    for name in ended:
                        shares |= await self._following(int(name), group, generations)
                        del shares[name]
                    found = replace(
                        found,
                        format_version=max(3, found.format_version),
                        moved={**found.moved, **dict.fromkeys(ended, group)},
                    )
                    segments = None
                # Recorded before the next base is tried.
                if ended or any(share is not None and share.group == group for share in progress.values()):
                    await document.swap(replace(found, shares=shares))
        await document.swap(replace(found, done=True, groups=(), shares={}, moved={}))

    async def _end_ancestors(self, shares: Iterable[str]) -> Generations:
        """End the partitions before those that get records, unless they have ended."""
        metadata = await open_log(self._store)
        generations = metadata.generations
        if metadata.growing:
            before = {generations.parent(int(name)) for name in shares} - {None}
            await gather(sorted(map(str, before)), lambda name: seal(self._store, self._hints, name))
        return generations

    async def _following(self, ended: int, group: int, generations: Generations) -> Mapping[str, PartitionProgress]:
        """The progress of the partitions that follow one that has ended.

        Raises:
            CorruptObject: no partition follows it.
        """
        children = generations.children(ended)
        if not children:
            raise CorruptObject(LOG_META, f"names no partition that follows {ended}, and {ended} has ended")
        return await gather([str(number) for number in children], lambda name: self._at_end(name, group))

    async def _load(
        self,
        keys: Sequence[str],
        transaction: Transaction,
        group: int,
        shares: Mapping[str, PartitionProgress],
        generations: Generations,
    ) -> dict[str, _Segment]:
        """The segments of a group, by partition."""
        run_in_thread = self._store.clock.run_in_thread

        async def load(key: str) -> dict[str, pa.RecordBatch] | None:
            stored = await self._store.get(key)
            return await run_in_thread(decode_staged, key, stored.body) if stored else None

        batches: dict[str, list[pa.RecordBatch]] = {}
        for key, found in (await gather(keys, load)).items():
            if found is None:
                raise CorruptObject(key, "is needed by an unfinished transaction, and is gone")
            for partition, batch in found.items():
                for name, records in _routed(partition, batch, group, transaction.moved, generations):
                    batches.setdefault(name, []).append(records)

        async def encode(partition: str) -> _Segment:
            put_id = f"{transaction.batch_id}-{group}"
            return await run_in_thread(_encoded, batches.pop(partition), put_id, shares[partition])

        return dict(await gather([name for name in batches if name in shares and shares[name].group == group], encode))

    async def _append(
        self, shares: Mapping[str, PartitionProgress], segments: Mapping[str, _Segment]
    ) -> Mapping[str, PartitionProgress | None]:
        """Append the segments of a group.

        The new progress of a partition is the next group, or the same group at another base if its base was taken. It
        is None if the partition has ended.
        """

        async def append(partition: str) -> PartitionProgress | None:
            share, segment = shares[partition], segments.get(partition)
            if segment is None:
                return share._replace(group=share.group + 1)
            try:
                appended = await self._create(partition, share.base, segment)
            except PartitionEnded:
                return None
            if appended:
                base, running = share.base + segment.rows, max(share.running, segment.newest)
                return PartitionProgress(share.group + 1, base, running)
            return await self._at_end(partition, share.group, share.base)

        return await gather(list(shares), append)

    async def _create(self, partition: str, base: int, segment: _Segment) -> bool:
        """Create a segment at the base that the document names. False: another producer's segment is there.

        Raises:
            PartitionEnded: the partition ends at the base.
            StoreUnavailable: the outcome is unknown, so the base may not be left.
            CorruptObject: the log was trimmed beyond the base. The segment may have been appended and read before.
        """
        await self._hints.begin()
        known: int | None = None
        try:
            other = await create_segment(self._store, partition, base, segment.body)
            known = base  # also if it is another producer's, which may have died before it wrote its hint
            lowest = (await read_boundary(self._store, log_boundary(partition))).lowest
            if base < lowest:
                raise CorruptObject(
                    log_file(partition, base),
                    f"is where an unfinished transaction was to append, and the log was trimmed below {lowest} since. "
                    "Nobody can tell whether its records were appended before. Look for them in the output of the "
                    "log's readers; then delete the transaction, and with it the records that are not appended yet",
                )
            if other is not None and other[0].ended:
                raise PartitionEnded(base)
            return other is None or other[0].put_id == segment.put_id
        finally:
            self._hints.end(partition, known)

    async def _delete_staged(self, name: str, batch: int) -> None:
        """Delete staged files that nobody needs any more. A later commit deletes those that cannot be deleted now."""
        try:
            listing = await self._store.list(LOG_STAGED)
            unneeded = []
            for entry in listing.entries:
                if (found := batch_of_staged(entry.key)) is None:
                    continue
                owner, number = found
                own = owner == name and number <= batch
                if own or await self._is_abandoned(owner, listing.now - entry.modified):
                    unneeded.append(entry.key)
            await gather(unneeded, self._store.delete)
            if name.startswith(UNNAMED):
                await self._store.delete(log_transaction(name))
        except StoreError as error:
            logger.warning("log.staged_not_removed", transaction=name, error=str(error))

    async def _is_abandoned(self, name: str, age: float) -> bool:
        if age < ABANDONED_AFTER:
            return False
        found = None if name.startswith(UNNAMED) else await _read(self._store, name)
        return found is None or found.done


async def abandon(store: Store, name: str) -> None:
    """Delete a transaction that is never run again, and its staged files. Appended records stay."""
    listing = await store.list(f"{LOG_STAGED}{name}/")
    await gather([entry.key for entry in listing.entries if batch_of_staged(entry.key)], store.delete)
    await store.delete(log_transaction(name))


async def is_done(store: Store, name: str, batch: int) -> bool:
    """Whether the batch is in the log."""
    found = await _read(store, name)
    return found is not None and (found.batch > batch or (found.batch == batch and found.done))


async def is_begun(store: Store, name: str, batch: int) -> bool:
    """Whether the batch, or an earlier one, was decided and is unfinished. A commit without records finishes it."""
    found = await _read(store, name)
    return found is not None and found.batch <= batch and not found.done


async def _read(store: Store, name: str) -> Transaction | None:
    return await SharedDocument(store, log_transaction(name), Transaction).read()


def _grouped(staged: Sequence[StagedFile]) -> tuple[tuple[str, ...], ...]:
    """The keys, in order, in groups of at most `GROUP_BYTES`, or of one file."""
    groups: list[list[str]] = []
    size = 0
    for file in staged:
        if not groups or size + file.size > GROUP_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file.key)
        size += file.size
    return tuple(map(tuple, groups))


def _routed(
    partition: str, records: pa.RecordBatch, group: int, moves: Mapping[str, int], generations: Generations
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The records of a group that were staged for a partition, by the partition that gets them."""
    if group < moves.get(partition, group + 1):
        yield partition, records
        return
    for number, rows in moved(generations, int(partition), records.column("key")):
        yield from _routed(str(number), records.take(pa.array(rows)), group, moves, generations)


def _encoded(batches: Sequence[pa.RecordBatch], put_id: str, share: PartitionProgress) -> _Segment:
    records = pa.Table.from_batches(batches)
    newest = newest_timestamp(records)
    running = max(share.running, newest)
    footer = SegmentFooter(put_id=put_id, producer="transaction", newest=newest, running=running, covers=share.base)
    return _Segment(put_id, encode_segment(records, footer, _COMPRESSION), records.num_rows, newest)
