"""Trims a log or an output: raises the boundary below which no file counts, then deletes the files below it.

Protocol: docs/protocol.md; model: tests/protocol/trim_model.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from actorproc.admin.audit import record_now
from actorproc.admin.readers import ReaderPosition, reader_positions
from actorproc.admin.retained import RetainedDataset
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.retention.boundary import RETENTION, raise_boundary, read_boundary
from actorproc.retention.kept_files import KeptFiles
from actorproc.retention.readers import Registry, decide, read_registry
from actorproc.runtime.tasks import gather
from actorproc.sinks.tables.open_tables import OpenTables
from actorproc.storage.backend import Entry
from actorproc.storage.listing import DataFile
from actorproc.storage.names import number_in, number_of

_FIRST_PAGE = 1_000
_LARGEST_PAGE = 10_000  # a folder store reads the whole folder for each page; S3 answers with a thousand at a time
_AT_ONCE = 1_000  # files of a partition deleted concurrently; the store has its own limit


class AgedFile(NamedTuple):
    """A numbered file with its age in seconds by the store's clock."""

    number: int
    age: float
    entry: Entry


class Hold(NamedTuple):
    """Files from `number` on are kept; `why` is printed."""

    number: int
    why: str


@dataclass(slots=True)
class FilesToGo:
    """Totals of the files that are deleted."""

    files: int = 0
    size: int = 0
    """Bytes."""
    first: int = 0
    """Lowest number; `last` is the highest."""
    last: int = 0
    youngest: float = 0.0
    """Age in seconds by the store's clock, as `oldest`."""
    oldest: float = 0.0

    def add(self, file: AgedFile) -> None:
        if not self.files:
            self.first, self.last, self.youngest, self.oldest = file.number, file.number, file.age, file.age
        self.first, self.last = min(self.first, file.number), max(self.last, file.number)
        self.youngest, self.oldest = min(self.youngest, file.age), max(self.oldest, file.age)
        self.files += 1
        self.size += file.entry.size


@dataclass(frozen=True, slots=True)
class PartitionTrim:
    """The effect of a trim on one partition: it deletes `going` and raises the boundary to `upto`."""

    partition: str
    upto: int
    hold: Hold
    """Why the other files are kept."""
    going: FilesToGo
    replaced: Sequence[range]
    """Ranges of originals that are deleted although they are not below `upto`: a compacted file replaces them."""
    compacted: Sequence[Entry]
    """Compacted files that are deleted."""

    @property
    def end(self) -> int:
        """No numbered file is deleted from this number on."""
        return _end(self.upto, self.replaced)

    def takes(self, number: int) -> bool:
        """Whether the file of this number is deleted."""
        return _goes(number, self.upto, self.replaced)


@dataclass(frozen=True, slots=True)
class Trim:
    """The effect of a trim, planned or done, with the readers' positions."""

    partitions: Sequence[PartitionTrim]
    readers: Sequence[ReaderPosition]
    seen: Registry

    @property
    def files(self) -> int:
        return sum(partition.going.files for partition in self.partitions)

    @property
    def size(self) -> int:
        return sum(partition.going.size for partition in self.partitions)


async def plan_trim(dataset: RetainedDataset, settings: Settings, *, older_than: float = RETENTION) -> Trim:
    """Plan a trim without changing anything.

    Args:
        older_than: files younger than these seconds are kept even if all readers have read them; `RETENTION` at least.

    Raises:
        UsageError: `older_than` is too short.
        CorruptObject: a checkpoint or the list of readers is corrupt.
    """
    _check_age(older_than)
    async with dataset.tables(settings) as tables:
        return await _plan_all(dataset, settings, tables, older_than)


def _check_age(older_than: float) -> None:
    if older_than < RETENTION:
        raise UsageError(
            f"older_than = {older_than:g} s: allowed are {RETENTION:g} s (1h) and more. Younger files are always kept, "
            "because queries that have listed them may still read them, and a delayed write may arrive late"
        )


async def _plan_all(dataset: RetainedDataset, settings: Settings, tables: OpenTables, older_than: float) -> Trim:
    registry = await read_registry(dataset.store, dataset.readers)
    positions = await tables.positions()
    partitions = await dataset.partitions()
    readers = await reader_positions(dataset, list(registry.readers.values()), partitions, settings)

    async def plan(partition: str) -> PartitionTrim:
        lowest = registry.lowest.get(partition, 0)
        holds = [_hold(reader, partition, lowest) for reader in readers if reader.expired_after is None]
        holds += [
            Hold(number, f"sink {name} gets {number} next")
            for name, number in await dataset.sinks_need(registry, partition, positions)
        ]
        holds.append(Hold(await dataset.newest(partition), "the newest file stays"))
        return await _plan(dataset, partition, lowest, min(holds, key=lambda hold: hold.number), older_than)

    return Trim(list((await gather(partitions, plan)).values()), readers, registry)


def _hold(position: ReaderPosition, partition: str, lowest: int) -> Hold:
    name = position.reader.name
    if position.error is not None:
        return Hold(lowest, f"the position of reader {name} cannot be read")
    if partition not in position.next:
        return Hold(lowest, f"reader {name} has not begun")
    return Hold(position.next[partition], f"reader {name} reads {position.next[partition]} next")


async def _plan(dataset: RetainedDataset, partition: str, lowest: int, hold: Hold, older_than: float) -> PartitionTrim:
    """Files below `lowest` do not count any more and are always deleted, as are originals that were compacted."""
    plan = _Plan(await dataset.compacted(partition), lowest, hold, older_than)
    async for now, files in _pages(dataset, partition):
        if not plan.take(now, files):
            break
    return plan.done(partition)


class _Plan:
    """The plan of one partition, made file by file in order, in constant memory."""

    def __init__(self, compacted: Sequence[tuple[DataFile, float]], lowest: int, hold: Hold, older_than: float) -> None:
        self._compacted = compacted
        self._lowest = self._upto = lowest
        self._hold = hold
        self._older_than = older_than
        self._replaced: Sequence[range] = ()
        self._going = FilesToGo()
        self._latest: AgedFile | None = None  # its fate depends on the next file
        self._begun, self._now = False, 0.0

    def take(self, now: float, files: Sequence[AgedFile]) -> bool:
        """Take in the next files; `now` by the store's clock. False: no later file is deleted."""
        if not self._begun:
            self._begin(now)
        for file in files:
            held = file.number >= self._lowest and not self._pass(file.number, file.age)
            self._settle()
            self._latest = file
            if held and file.number >= _end(self._upto, self._replaced):
                return False
        return True

    def _begin(self, now: float) -> None:
        self._begun, self._now = True, now
        self._replaced = _replaced(self._compacted, now - self._older_than)
        for file, _ in self._compacted:
            if not self._pass(file.number, now - file.time):
                break

    def done(self, partition: str) -> PartitionTrim:
        """The finished plan."""
        self._settle()
        compacted = [file for file, _ in self._compacted if file.next <= self._upto]
        gone = [Entry(file.key, "", file.size, file.time) for file in compacted]
        for entry in gone:
            self._going.add(AgedFile(number_of(entry.key), self._now - entry.modified, entry))
        return PartitionTrim(partition, self._upto, self._hold, self._going, self._replaced, gone)

    def _settle(self) -> None:
        if (file := self._latest) is not None and _goes(file.number, self._upto, self._replaced):
            self._going.add(file)
        self._latest = None

    def _pass(self, number: int, age: float) -> bool:
        """Whether this file allows that files below this number are deleted."""
        if number > self._hold.number:
            return False
        # A reader beyond this number has read the files below it; a reader positioned inside this file still needs it.
        self._upto = max(self._upto, number)
        if age < self._older_than and number < self._hold.number:
            self._hold = Hold(number, f"younger than {self._older_than / 3600:g} h")
        return True


def _goes(number: int, upto: int, replaced: Sequence[range]) -> bool:
    return number < upto or any(number in numbers for numbers in replaced)


def _end(upto: int, replaced: Sequence[range]) -> int:
    return max(upto, replaced[-1].stop) if replaced else upto


def _replaced(compacted: Sequence[tuple[DataFile, float]], before: float) -> list[range]:
    """Ranges of originals that were replaced by compacted files `before` that time, adjacent ones joined."""
    found: list[range] = []
    for file, since in compacted:
        if since > before:
            continue
        first = found.pop().start if found and found[-1].stop == file.number else file.number
        found.append(range(first, file.next))
    return found


async def _pages(dataset: RetainedDataset, partition: str) -> AsyncIterator[tuple[float, list[AgedFile]]]:
    """Pages of the numbered files in order, each with the store's clock, listed on demand."""
    folder = after = dataset.folder(partition)
    limit = _FIRST_PAGE
    while True:
        listing = await dataset.store.list(folder, after, limit)
        found = ((number_in(folder, entry.key), entry) for entry in listing.entries)
        yield listing.now, [AgedFile(n, listing.now - entry.modified, entry) for n, entry in found if n is not None]
        if len(listing.entries) < limit:
            return
        after, limit = listing.entries[-1].key, min(4 * limit, _LARGEST_PAGE)


async def trim(
    dataset: RetainedDataset,
    settings: Settings,
    *,
    older_than: float = RETENTION,
    began: Callable[[Trim], None] = lambda _: None,
    deleted: Callable[[Entry], None] = lambda _: None,
) -> Trim:
    """Trim, and complete an earlier trim that was interrupted.

    Args:
        began: called with the plan once it is decided.
        deleted: called with each deleted file.

    Raises:
        UsageError, CorruptObject: as `plan_trim`.
        StoreError: the next trim deletes the rest.
    """
    _check_age(older_than)
    async with dataset.tables(settings) as tables:
        planned = await _decided(dataset, settings, tables, older_than)
        began(planned)
        doomed = {found.partition: found for found in planned.partitions if found.going.files}
        await gather(list(doomed), lambda p: raise_boundary(dataset.store, dataset.boundary(p), doomed[p].upto))
        kept = await tables.kept_now()
        files, size = 0, 0

        def note(entry: Entry) -> None:
            nonlocal files, size
            files, size = files + 1, size + entry.size
            deleted(entry)

        expired = {found.reader.name for found in planned.readers if found.expired_after is not None}
        try:
            await gather(list(doomed), lambda partition: _carry_out(dataset, doomed[partition], kept, note))
        finally:  # files were deleted although a later request failed, or the user stopped it
            if files or expired:
                effect = [f"files deleted: {files:,}, {size:,} bytes"]
                effect += [f"readers removed, which were silent for too long: {', '.join(sorted(expired))}"] * bool(
                    expired
                )
                to = {"older_than": f"{older_than:g} s"}
                await record_now(dataset.store, dataset.audit, "trim", to, "; ".join(effect))
        return planned


async def _decided(dataset: RetainedDataset, settings: Settings, tables: OpenTables, older_than: float) -> Trim:
    """The plan, once the new `lowest` numbers are in the registry."""
    while True:
        planned = await _plan_all(dataset, settings, tables, older_than)
        lowest = planned.seen.lowest
        higher = {
            found.partition: found.upto for found in planned.partitions if found.upto > lowest.get(found.partition, 0)
        }
        expired = {found.reader.name for found in planned.readers if found.expired_after is not None}
        if not (higher or expired) or await decide(dataset.store, dataset.readers, planned.seen, higher, expired):
            return planned


async def _carry_out(
    dataset: RetainedDataset, planned: PartitionTrim, kept: KeptFiles, deleted: Callable[[Entry], None]
) -> None:
    # Read after the tables were asked. What a later change of the boundary drops is not among the planned files.
    boundary = await read_boundary(dataset.store, dataset.boundary(planned.partition))

    async def delete(entry: Entry) -> None:
        if kept.frees(planned.partition, entry.key, boundary.changes):  # else a later trim deletes it
            await dataset.store.delete(entry.key)
            deleted(entry)

    # These go first: if this process dies, the files that are left make the next trim come here again.
    beside = await dataset.beside(planned.partition)
    await gather([key for number, key in beside if planned.takes(number)], dataset.store.delete)
    async for _, files in _pages(dataset, planned.partition):
        doomed = [file.entry for file in files if planned.takes(file.number)]
        for start in range(0, len(doomed), _AT_ONCE):
            entries = doomed[start : start + _AT_ONCE]
            await gather(entries, delete)
        if files and files[-1].number >= planned.end:
            break
    await gather(planned.compacted, delete)
