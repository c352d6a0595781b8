"""The built-in partitioned log: its files, and how its ends and a time are found.

A partition is a chain of Parquet files. A file is named by its base, the sequence of its first record; the next file's
base is that plus the rows. Who creates a base decides what is there, so producers need no broker to agree on an order.
Nothing outside this module may rely on sequences being dense.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.errors import RESTORE, CorruptObject, UsageError, repr_of
from actorproc.group.locations import processors_at
from actorproc.records import RECORD_SCHEMA, Batch
from actorproc.storage.document import check_types, document, to_document
from actorproc.storage.listing import numbered_files
from actorproc.storage.names import LOG_META, log_dir, log_file
from actorproc.storage.parquet import Footer, footer_from, footer_of, open_parquet, read_footer, write_parquet
from actorproc.storage.store import Conflict, Store, Stored

ROW_GROUP_BYTES = 4 * 2**20
"""Bytes of columns in a row group, about: what a reader has to hold at once, whatever the size of the file."""

MAX_PARTITIONS = 100_000

_NOTES = "actorproc.log"
_PAGE = 100  # keys asked for where one or a few are expected


# The log as a whole


def checked_partitions(partitions: object) -> int:
    """Raises UsageError: it is no possible number of partitions."""
    if type(partitions) is int and 1 <= partitions <= MAX_PARTITIONS:
        return partitions
    raise UsageError(f"partitions = {repr_of(partitions)}: a whole number from 1 to {MAX_PARTITIONS:,}")


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


# One file


@dataclass(frozen=True, slots=True)
class Notes:
    """What the footer of a log file says of it. Times: microseconds since 1970.

    `running` is the greatest timestamp of this file and of all files below base `covers`. A producer that has lost a
    race for a base sends the same bytes at the next one, so `covers` may be lower than the file's own base: the files
    in between speak for themselves.
    """

    put_id: str
    producer: str
    newest: int
    running: int
    covers: int

    @classmethod
    def from_footer(cls, key: str, footer: Footer) -> Self:
        with document(key, footer.metadata.get(_NOTES, ""), "file of a log") as fields:
            if footer.rows < 1:
                raise CorruptObject(key, "has no records; no producer writes that")
            return cls(**fields)


def encode_file(table: pa.Table, notes: Notes, compression: str) -> bytes:
    """A log file of `table`, which has the columns of `RECORD_SCHEMA`. CPU-heavy: run it off the loop."""
    key = table.column("key")
    sample = key.slice(0, 1000)
    repeats = pc.count_distinct(sample).as_py() * 2 <= len(sample)
    return write_parquet(
        table,
        {_NOTES: to_document(asdict(notes)).decode()},
        row_group_rows=max(1, -(-table.num_rows // max(1, round(table.nbytes / ROW_GROUP_BYTES)))),
        compression=compression,
        # Payloads hardly ever repeat, and trying a dictionary costs; statistics of them tell nothing.
        use_dictionary=["key", "timestamp"] if repeats else ["timestamp"],
        write_statistics=["timestamp"],
    )


class Segment:
    """A log file in memory.

    Raises (everywhere):
        CorruptObject: it is not what a producer wrote.
    """

    def __init__(self, partition: str, base: int, body: bytes) -> None:
        self.partition = partition
        self.base = base
        self.key = log_file(partition, base)
        try:
            self._file = open_parquet(body)
        except (pa.ArrowException, OSError) as error:
            footer_of(self.key, body)  # may know more of what is wrong
            raise self._corrupt(error) from None
        described = self._file.metadata
        footer = footer_from(self.key, described)
        self.notes = Notes.from_footer(self.key, footer)
        self.rows = footer.rows
        if sum(described.row_group(group).num_rows for group in range(self._file.num_row_groups)) != self.rows:
            raise CorruptObject(self.key, f"its row groups do not add up to its {self.rows} records")

    @property
    def next(self) -> int:
        """Base of the file after this one."""
        return self.base + self.rows

    @property
    def group_bytes(self) -> int:
        """About what its largest row group takes in memory."""
        described = self._file.metadata
        return max(int(described.row_group(group).total_byte_size) for group in range(self._file.num_row_groups))

    def batches(self, skip: int = 0) -> Generator[Batch, None, None]:
        """Its records but the first `skip`, a row group at a time. Each step is CPU-heavy: run it off the loop."""
        first = 0
        for group in range(self._file.num_row_groups):
            last = first + self._file.metadata.row_group(group).num_rows
            if last > skip:
                data = self._decode(group, RECORD_SCHEMA)
                start = max(skip - first, 0)
                yield Batch(self.partition, data, self._sequences(first, last))[start:]
            first = last

    def columns(self, names: Sequence[str]) -> Generator[tuple[list[pa.Array], pa.Int64Array], None, None]:
        """Of all its records the columns `names` of `RECORD_SCHEMA` alone, and the sequences; otherwise as `batches`."""
        schema = pa.schema([RECORD_SCHEMA.field(name) for name in names])
        first = 0
        for group in range(self._file.num_row_groups):
            last = first + self._file.metadata.row_group(group).num_rows
            yield (self._decode(group, schema).columns if names else []), self._sequences(first, last)
            first = last

    def first_at(self, time: int) -> int:
        """How many records come before the first one that is as late as `time`, in microseconds since 1970."""
        for batch in self.batches():
            late = pc.greater_equal(batch.data.column("timestamp").cast(pa.int64()), time)
            if (index := pc.index(late, True).as_py()) >= 0:
                return batch.first - self.base + int(index)
        return self.rows

    def _sequences(self, first: int, last: int) -> pa.Int64Array:
        return pa.array(np.arange(self.base + first, self.base + last, dtype=np.int64))

    def _decode(self, group: int, schema: pa.Schema) -> pa.RecordBatch:
        try:
            table = self._file.read_row_group(group, columns=schema.names, use_threads=False)
            if not table.schema.equals(schema):
                table = table.select(schema.names).cast(schema)
            return table.combine_chunks().to_batches()[0]
        except (pa.ArrowException, OSError, KeyError) as error:
            raise self._corrupt(error) from None

    def _corrupt(self, error: Exception) -> CorruptObject:
        return CorruptObject(self.key, f"cannot be read ({error}); {RESTORE}: nothing beyond it is read before")


# Finding


async def first_base(store: Store, partition: str, at: int = 0) -> int | None:
    """Base of the first file from base `at` on, or None."""
    page = await _bases(store, partition, at, limit=1)
    return page[0] if page else None


async def last_base(store: Store, partition: str, hint: int = 0) -> int | None:
    """Base of the newest file, or None if there is none.

    Args:
        hint: a base that was the newest once. With a fresh one this is one request; with an old one it grows with the
            logarithm of the number of records, not with the number of files.
    """
    page = await _bases(store, partition, hint)
    if not page:
        return await last_base(store, partition) if hint else None
    if len(page) < _PAGE:
        return page[-1]
    low, step = page[-1], page[-1] - page[0]
    while page := await _bases(store, partition, low + step):
        low, step = page[-1], step * 2
        if len(page) < _PAGE:
            return low
    high = low + step  # nothing is there or beyond
    while high - low > 1:
        middle = (low + high) // 2
        page = await _bases(store, partition, middle)
        if page:
            low = page[-1]
            if len(page) < _PAGE:
                break
        else:
            high = middle
    return low


async def end_of(store: Store, partition: str, hint: int = 0) -> int:
    """The base that the next file will get. `hint` as in `last_base`."""
    found = await newest_file(store, partition, hint)
    return 0 if found is None else found[1]


async def find_time(store: Store, partition: str, time: int, hint: int = 0, lowest: int = 0) -> tuple[int, int]:
    """Where the first record lies that is as late as `time`, in microseconds since 1970.

    Timestamps need not grow from record to record, but their running maximum does, and each file's footer has it: the
    first file in which it reaches `time` is found by bisection over the bases, from `lowest` on.

    Returns:
        Base of its file, and how many records of that come before it. The end of the partition, if there is none.
    """
    low, high = lowest, await end_of(store, partition, hint)
    found = high
    while low < high:
        middle = (low + high) // 2
        base = await first_base(store, partition, middle)
        if base is None or base >= high:
            high = middle
        elif await running_time(store, partition, base) >= time:
            found, high = base, middle
        else:
            low = base + 1
    while (stored := await store.get(log_file(partition, found))) is not None:
        file = await store.clock.offload(Segment, partition, found, stored.body)
        first = await store.clock.offload(file.first_at, time)
        if first < file.rows:
            return found, first
        found += file.rows  # the running maximum was that of a file that is trimmed
        while (footer := await read_footer(store, key := log_file(partition, found))) is not None:
            if Notes.from_footer(key, footer).newest >= time:
                break
            found += footer.rows
    return found, 0


async def _bases(store: Store, partition: str, at: int, limit: int = _PAGE) -> list[int]:
    """Bases of the first files from base `at` on, in order."""
    return [found.number for found in await numbered_files(store, log_dir(partition), at, limit)]


async def newest_file(store: Store, partition: str, hint: int = 0) -> tuple[int, int] | None:
    """Base of the newest file, and the base after it; None if there is none. `hint` as in `last_base`.

    Raises:
        CorruptObject: it is not what was written there.
    """
    base = await last_base(store, partition, hint)
    while base is not None:
        try:
            return base, (await read_notes(store, partition, base))[1]
        except CorruptObject:
            listed, base = base, await last_base(store, partition, hint)
            if base == listed:
                raise
            # Another file was appended meanwhile, and a trim took this one.
    return None


async def read_notes(store: Store, partition: str, base: int) -> tuple[Notes, int]:
    """Notes of the file at `base`, and the base after it."""
    key = log_file(partition, base)
    footer = await read_footer(store, key)
    if footer is None:
        raise CorruptObject(key, "was listed and is gone: files of a log are deleted while it is read")
    return Notes.from_footer(key, footer), base + footer.rows


async def running_time(store: Store, partition: str, base: int) -> int:
    """The greatest timestamp up to and with the file at `base`; of files that were trimmed it may not be known."""
    notes, _ = await read_notes(store, partition, base)
    running, at = notes.running, notes.covers
    while at < base:  # files that slipped in between; each lets us find the next
        key = log_file(partition, at)
        footer = await read_footer(store, key)
        if footer is None:
            at = await first_base(store, partition, at + 1) or base
        else:
            running = max(running, Notes.from_footer(key, footer).newest)
            at += footer.rows
    return running
