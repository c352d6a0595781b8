"""Transactions: staged records come into a log as a whole, each once, however often the work is killed and done again.

A transaction has a name, and batches that count up. What a batch consists of, and where each partition's first file of
it is tried, is decided by one document before anything is appended; from there on whoever goes on, with whatever it has
staged itself, finishes just that. Each append follows the rule of `actorproc.log.append_once`. docs/protocol.md says more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from actorproc.errors import CorruptObject, SourceError, StoreError, UsageError
from actorproc.log.append_once import ending, hinting, land
from actorproc.log.hints import HintWriter
from actorproc.log.metadata import open_log
from actorproc.log.offsets import first_base
from actorproc.log.segment import SegmentFooter, encode_file
from actorproc.log.staged_files import StagedFile, decode_staged
from actorproc.retention.boundary import read_boundary
from actorproc.runtime.logger import get_logger
from actorproc.runtime.tasks import gather
from actorproc.storage.document import document, to_document
from actorproc.storage.names import LOG_STAGED, batch_of_staged, folder_of, log_boundary, log_transaction
from actorproc.storage.store import Conflict, Store, Stored

GROUP_BYTES = 64 * 2**20
"""Bytes of staged records that are appended together, as one file for each partition: what is in memory at once."""

ABANDONED_AFTER = 7 * 86_400.0
"""Seconds after which staged records that belong to no unfinished transaction are removed, whoever staged them."""

UNNAMED = "job-"
"""Names of transactions that nobody will do again begin so."""

_COMPRESSION = "zstd"

_DOUBT = (
    "Look for them in the log's readers; then delete the transaction's object, and with it what is not appended yet"
)

log = get_logger(__name__)


class PartitionProgress(NamedTuple):
    """How far a partition is: files of groups below `group` are in the log; that group's is tried at `base` and nowhere
    else. `running`: the greatest timestamp below `base`, in microseconds since 1970."""

    group: int
    base: int
    running: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """What stands under a transaction's name: its latest batch, and unless that is `done` what there is to do."""

    batch: int
    done: bool
    put_id: str
    """Of the batch: those of its log files are made from it."""
    groups: Sequence[Sequence[str]] = ()
    """Keys of the staged objects whose records are appended together."""
    shares: Mapping[str, PartitionProgress] = field(default_factory=dict)
    """By partition."""
    write_id: str = ""
    """Makes each version of this object unique."""

    def to_json(self) -> bytes:
        return to_document(asdict(self) | {"shares": {name: list(share) for name, share in self.shares.items()}})

    @classmethod
    def from_json(cls, key: str, body: bytes) -> Self:
        with document(key, body, "transaction of a log") as fields:
            shares = {name: PartitionProgress(*share) for name, share in fields.pop("shares").items()}
            return cls(shares=shares, **fields)


class _File(NamedTuple):
    """A log file to be appended. `newest`: the greatest timestamp in it, in microseconds since 1970."""

    put_id: str
    body: bytes
    rows: int
    newest: int


class Transactions:
    """The transactions of one log, whose store is open.

    Raises (everywhere):
        StoreUnavailable: not settled; do it again to go on.
        CorruptObject: an object in the way is not what was written there.
    """

    def __init__(self, store: Store, heads: HintWriter) -> None:
        self._store = store
        self._heads = heads

    @classmethod
    @asynccontextmanager
    async def opened(cls, store: Store) -> AsyncIterator[Self]:
        """While inside, readers of the log are told of what is appended.

        Raises:
            UsageError: there is no log.
        """
        await open_log(store)
        async with hinting(store) as heads:
            yield cls(store, heads)

    async def commit(self, name: str, batch: int, staged: Sequence[StagedFile], *, in_turn: bool = False) -> None:
        """On return `batch` is in the log, once: these records, or those with which it was begun before.

        Args:
            batch: greater than the one before; one that is not, is in the log already, and nothing is done.
            staged: in the order in which the records are to be appended.
            in_turn: batches are only done again one at a time, the latest. An earlier one has other records by now.

        Raises:
            UsageError: what was staged is somewhere else.
            SourceError: `in_turn`, and a later batch is there: whoever asks for this one has gone back in time.
        """
        key = log_transaction(name)
        stored = await self._store.get(key)
        planned = ""
        while True:
            found = Transaction.from_json(key, stored.body) if stored else None
            if found is not None and not found.done:
                try:
                    if found.put_id != planned:
                        await self._check_whole(key, found)
                    stored, ours = await self._finish(key, found, stored.tag if stored else "")
                except CorruptObject:
                    before, stored = stored, await self._store.get(key)
                    if stored is None or before is None or stored.tag == before.tag:
                        raise
                    continue  # another driver has gone on while this one slept, and knows what became of it
                if ours:
                    log.info("log.transaction_done", transaction=name, batch=found.batch)
            elif found is not None and found.batch >= batch:
                if in_turn and found.batch > batch:
                    raise SourceError(
                        f"micro-batch {batch} is to be appended to {self._store.url}, and {found.batch} of the same query is there already: "
                        "its checkpoint was restored from an older copy, or the query runs somewhere else, too. Under these numbers are "
                        "other rows by now. Restore the newest checkpoint, or begin with a new checkpointLocation"
                    )
                break
            elif unseen := await self._unseen(staged):
                before, stored = stored, await self._store.get(key)
                if stored == before:  # else another driver has finished the batch, and removed them
                    raise UsageError(
                        f"{unseen} of {len(staged)} objects that tasks have staged for {self._store.url} are not there for the driver: "
                        "every machine must reach the log at this URL, in a bucket or in a folder that all of them share"
                    )
            else:
                plan = await self._plan(batch, staged)
                planned = plan.put_id
                stored, _ = await self._write(key, plan, stored.tag if stored else None)
        await self._tidy(name, batch)

    async def _unseen(self, staged: Sequence[StagedFile]) -> int:
        """How many of the staged objects are not here: once a batch is decided on them, nothing else can be done."""
        folders = {folder_of(one.key) for one in staged}
        listed = (await gather(sorted(folders), self._store.list)).values()
        found = {entry.key for listing in listed for entry in listing.entries}
        return sum(one.key not in found for one in staged)

    async def _plan(self, batch: int, staged: Sequence[StagedFile]) -> Transaction:
        hints = self._heads.newest
        partitions = sorted({str(partition) for one in staged for partition in one.partitions}, key=int)
        ends = await gather(partitions, lambda name: ending(self._store, name, hints.get(name, 0)))
        shares = {name: PartitionProgress(0, *end) for name, end in ends.items()}
        return Transaction(batch, done=not staged, put_id=self._nonce(), groups=_grouped(staged), shares=shares)

    async def _write(self, key: str, transaction: Transaction, tag: str | None) -> tuple[Stored | None, bool]:
        """Store it in place of version `tag` (None: of nothing). What is there then, and whether it is ours."""
        body = replace(transaction, write_id=self._nonce()).to_json()
        try:
            written = await self._store.write(key, body, tag)
        except Conflict as conflict:
            return conflict.stored, False
        return Stored(body, written, len(body)), True

    async def _check_whole(self, key: str, found: Transaction) -> None:
        """See that no base which is to be tried was taken, and its file deleted since: it would be appended twice."""

        async def check(partition: str) -> None:
            base = found.shares[partition].base
            lowest = (await read_boundary(self._store, log_boundary(partition))).lowest
            first = await first_base(self._store, partition, max(base, lowest))  # what lies below is void
            if first not in (None, base):
                raise CorruptObject(
                    key,
                    f"batch {found.batch} is unfinished, and partition {partition} has lost its files from {base} on (the "
                    f"next begin at {first}): nobody can tell what is appended. Restore them, or delete this object and "
                    "with it what is not appended yet",
                )

        await gather(list(found.shares), check)

    async def _finish(self, key: str, found: Transaction, tag: str) -> tuple[Stored | None, bool]:
        """Append what is not in the log yet. Returns the document as it is then: done, or as another has made it; and whether it
        is done by this."""
        shares = dict(found.shares)
        for group, keys in enumerate(found.groups):
            if all(share.group > group for share in shares.values()):
                continue
            files = await self._load(keys, found.put_id, group, shares)
            if files is None:  # done by another meanwhile, or lost
                stored = await self._store.get(key)
                if stored is not None and stored.tag == tag:
                    raise CorruptObject(key, f"needs staged records that are gone: {', '.join(keys)}")
                return stored, False
            while waiting := {name: share for name, share in shares.items() if share.group == group}:
                after = await self._append(waiting, files)
                shares |= after
                moved = any(share.group == group for share in after.values())
                if moved:  # written down before it is tried there
                    stored, ours = await self._write(key, replace(found, shares=shares), tag)
                    if stored is None or not ours:
                        return stored, False
                    tag = stored.tag
        return await self._write(key, Transaction(found.batch, done=True, put_id=found.put_id), tag)

    async def _load(
        self, keys: Sequence[str], put_id: str, group: int, shares: Mapping[str, PartitionProgress]
    ) -> dict[str, _File] | None:
        """The log files of a group, by partition; None if some of its staged objects are not there."""
        run_in_thread = self._store.clock.run_in_thread

        async def load(key: str) -> dict[str, pa.RecordBatch] | None:
            stored = await self._store.get(key)
            return await run_in_thread(decode_staged, key, stored.body) if stored else None

        batches: dict[str, list[pa.RecordBatch]] = {}
        for found in (await gather(keys, load)).values():
            if found is None:
                return None
            for partition, batch in found.items():
                batches.setdefault(partition, []).append(batch)

        async def encode(partition: str) -> _File:
            return await run_in_thread(_encoded, batches.pop(partition), f"{put_id}-{group}", shares[partition])

        return dict(await gather([name for name in batches if shares[name].group == group], encode))

    async def _append(
        self, shares: Mapping[str, PartitionProgress], files: Mapping[str, _File]
    ) -> Mapping[str, PartitionProgress]:
        """Append a group's files. Returns what comes next of each share: the next group; or the same once more, where it
        is to be tried then, as the base turned out to be another's. The bytes stay the same."""

        async def append(partition: str) -> PartitionProgress:
            share, file = shares[partition], files.get(partition)
            if file is None:
                return share._replace(group=share.group + 1)
            if await land(self._store, self._heads, partition, share.base, file.put_id, file.body, doubt=_DOUBT):
                return PartitionProgress(share.group + 1, share.base + file.rows, max(share.running, file.newest))
            return PartitionProgress(share.group, *await ending(self._store, partition, share.base))

        return await gather(list(shares), append)

    async def _tidy(self, name: str, batch: int) -> None:
        """Remove what nobody needs any more. What cannot be removed now is removed another time."""
        try:
            listing = await self._store.list(LOG_STAGED)
            gone = []
            for entry in listing.entries:
                if (found := batch_of_staged(entry.key)) is None:
                    continue
                owner, number = found
                mine = owner == name and number <= batch
                if mine or await self._is_abandoned(owner, listing.now - entry.modified):
                    gone.append(entry.key)
            await gather(gone, self._store.delete)
            if name.startswith(UNNAMED):
                await self._store.delete(log_transaction(name))
        except StoreError as error:
            log.warning("log.staged_not_removed", transaction=name, error=str(error))

    async def _is_abandoned(self, name: str, age: float) -> bool:
        if age < ABANDONED_AFTER:
            return False
        found = None if name.startswith(UNNAMED) else await _read(self._store, name)
        return found is None or found.done

    def _nonce(self) -> str:
        return self._store.clock.nonce()


async def abandon(store: Store, name: str) -> None:
    """Forget a transaction that nobody will do again, and what was staged for it. What is appended stays."""
    listing = await store.list(f"{LOG_STAGED}{name}/")
    await gather([entry.key for entry in listing.entries if batch_of_staged(entry.key)], store.delete)
    await store.delete(log_transaction(name))


async def is_done(store: Store, name: str, batch: int) -> bool:
    """Whether the batch is in the log already."""
    found = await _read(store, name)
    return found is not None and (found.batch > batch or (found.batch == batch and found.done))


async def is_begun(store: Store, name: str, batch: int) -> bool:
    """Whether the batch, or one before it, was decided and is not finished: a commit finishes it, though it has no records."""
    found = await _read(store, name)
    return found is not None and found.batch <= batch and not found.done


async def _read(store: Store, name: str) -> Transaction | None:
    key = log_transaction(name)
    stored = await store.get(key)
    return None if stored is None else Transaction.from_json(key, stored.body)


def _grouped(staged: Sequence[StagedFile]) -> list[list[str]]:
    """The keys, in order, in groups of at most `GROUP_BYTES`, or of one."""
    groups: list[list[str]] = []
    size = 0
    for one in staged:
        if not groups or size + one.size > GROUP_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(one.key)
        size += one.size
    return groups


def _encoded(batches: Sequence[pa.RecordBatch], put_id: str, share: PartitionProgress) -> _File:
    table = pa.Table.from_batches(batches)
    newest = pc.max(table.column("timestamp")).cast(pa.int64()).as_py()
    notes = SegmentFooter(put_id, "transaction", newest, max(share.running, newest), covers=share.base)
    return _File(put_id, encode_file(table, notes, _COMPRESSION), table.num_rows, newest)
