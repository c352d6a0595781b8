"""Trimming: what nobody needs any more is made void, then deleted. Protocol: docs/protocol.md, tests/protocol/trim_model.py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from actorproc.admin.reader_positions import Standing, standings
from actorproc.admin.retained import Compacted, RetainedDataset
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.retention.boundary import RETENTION, raise_boundary
from actorproc.retention.readers import Registry, decide, read_registry
from actorproc.runtime.tasks import gather
from actorproc.storage.names import number_in, number_of
from actorproc.storage.store import Entry

_FIRST_PAGE = 1_000
_LARGEST_PAGE = 10_000  # a folder is read as a whole for each; S3 answers with a thousand at a time
_AT_ONCE = 1_000  # files deleted at once, of a partition; the store has its own limit


class AgedFile(NamedTuple):
    """A numbered file, as it was listed. `age`: in seconds by the store's clock."""

    number: int
    age: float
    entry: Entry


class Hold(NamedTuple):
    """Files from `number` on are kept, and `why`."""

    number: int
    why: str


@dataclass(slots=True)
class FilesToGo:
    """What is known of files that go, however many."""

    files: int = 0
    size: int = 0
    """Bytes that are freed."""
    first: int = 0
    """The lowest number, and `last` the highest."""
    last: int = 0
    youngest: float = 0.0
    """Seconds by the store's clock, as `oldest`."""
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
    """What a trim does to a partition: `going` goes, and numbers below `upto` count no more."""

    partition: str
    upto: int
    hold: Hold
    """What keeps the rest."""
    going: FilesToGo
    replaced: Sequence[range]
    """Numbers of files that go although they are not below `upto`: readers are led to compacted ones. In order."""
    compacted: Sequence[Entry]
    """Compacted files that go."""

    @property
    def end(self) -> int:
        """No numbered file goes from this number on."""
        return _end(self.upto, self.replaced)

    def takes(self, number: int) -> bool:
        """Whether the file of this number goes."""
        return _goes(number, self.upto, self.replaced)


@dataclass(frozen=True, slots=True)
class Trim:
    """What a trim would do, or has done; and where the readers stood."""

    partitions: Sequence[PartitionTrim]
    readers: Sequence[Standing]
    seen: Registry

    @property
    def files(self) -> int:
        return sum(partition.going.files for partition in self.partitions)

    @property
    def size(self) -> int:
        return sum(partition.going.size for partition in self.partitions)


async def plan_trim(kept: RetainedDataset, settings: Settings, *, older_than: float = RETENTION) -> Trim:
    """What may go now. Changes nothing.

    Args:
        older_than: seconds for which files are kept, whoever has read them; `RETENTION` at least.

    Raises:
        UsageError: that is too short.
        CorruptObject: a checkpoint, or the list of readers, is not what was written there.
    """
    if older_than < RETENTION:
        raise UsageError(
            f"older_than = {older_than:g} s: {RETENTION:g} s (1h) at least. A write that was sent may land for 15 minutes, "
            "and whoever has listed files is still to read them"
        )
    registry = await read_registry(kept.store, kept.readers)
    partitions = await kept.partitions()
    readers = await standings(kept, list(registry.readers.values()), partitions, settings)

    async def plan(partition: str) -> PartitionTrim:
        lowest = registry.lowest.get(partition, 0)
        holds = [_hold(reader, partition, lowest) for reader in readers]
        holds.append(Hold(await kept.newest(partition), "the newest file stays"))
        return await _plan(kept, partition, lowest, min(holds, key=lambda hold: hold.number), older_than)

    return Trim(list((await gather(partitions, plan)).values()), readers, registry)


def _hold(standing: Standing, partition: str, lowest: int) -> Hold:
    name = standing.reader.name
    if standing.error is not None:
        return Hold(lowest, f"reader {name} cannot be asked")
    if partition not in standing.next:
        return Hold(lowest, f"reader {name} has not begun")
    return Hold(standing.next[partition], f"reader {name} reads {standing.next[partition]} next")


async def _plan(kept: RetainedDataset, partition: str, lowest: int, hold: Hold, older_than: float) -> PartitionTrim:
    """Files below `lowest` are void already, however they came there, and go in any case; so do those that were compacted."""
    plan = _Plan(await kept.compacted(partition), lowest, hold, older_than)
    async for now, files in _pages(kept, partition):
        if not plan.take(now, files):
            break
    return plan.done(partition)


class _Plan:
    """Made file by file, in order, so that it takes no memory for each."""

    def __init__(self, compacted: Sequence[Compacted], lowest: int, hold: Hold, older_than: float) -> None:
        self._compacted = compacted
        self._lowest = self._upto = lowest
        self._hold = hold
        self._older_than = older_than
        self._replaced: Sequence[range] = ()
        self._going = FilesToGo()
        self._latest: AgedFile | None = None  # of which only the next one tells whether it goes
        self._begun, self._now = False, 0.0

    def take(self, now: float, files: Sequence[AgedFile]) -> bool:
        """The next files; `now` by the store's clock. False: none of those that follow goes."""
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
        for each in self._compacted:
            if not self._pass(each.file.number, now - each.file.time):
                break

    def done(self, partition: str) -> PartitionTrim:
        """What goes, now that all files were taken, or those before which it ends."""
        self._settle()
        compacted = [each.file for each in self._compacted if each.file.next <= self._upto]
        gone = [Entry(file.key, "", file.size, file.time) for file in compacted]
        for entry in gone:
            self._going.add(AgedFile(number_of(entry.key), self._now - entry.modified, entry))
        return PartitionTrim(partition, self._upto, self._hold, self._going, self._replaced, gone)

    def _settle(self) -> None:
        if (file := self._latest) is not None and _goes(file.number, self._upto, self._replaced):
            self._going.add(file)
        self._latest = None

    def _pass(self, number: int, age: float) -> bool:
        """Whether what is below this number may go, as far as this file is concerned."""
        if number > self._hold.number:
            return False
        # A reader that is beyond it has passed it; one positioned inside this file still needs it.
        self._upto = max(self._upto, number)
        if age < self._older_than and number < self._hold.number:
            self._hold = Hold(number, f"younger than {self._older_than / 3600:g} h")
        return True


def _goes(number: int, upto: int, replaced: Sequence[range]) -> bool:
    return number < upto or any(number in numbers for numbers in replaced)


def _end(upto: int, replaced: Sequence[range]) -> int:
    return max(upto, replaced[-1].stop) if replaced else upto


def _replaced(compacted: Sequence[Compacted], before: float) -> list[range]:
    """Numbers of originals that readers were led away from `before` that time; neighbours together."""
    found: list[range] = []
    for file, since in compacted:
        if since > before:
            continue
        first = found.pop().start if found and found[-1].stop == file.number else file.number
        found.append(range(first, file.next))
    return found


async def _pages(kept: RetainedDataset, partition: str) -> AsyncIterator[tuple[float, list[AgedFile]]]:
    """The numbered files in order, and the store's clock; listed as they are asked for."""
    folder = after = kept.folder(partition)
    limit = _FIRST_PAGE
    while True:
        listing = await kept.store.list(folder, after, limit)
        found = ((number_in(folder, entry.key), entry) for entry in listing.entries)
        yield listing.now, [AgedFile(n, listing.now - entry.modified, entry) for n, entry in found if n is not None]
        if len(listing.entries) < limit:
            return
        after, limit = listing.entries[-1].key, min(4 * limit, _LARGEST_PAGE)


async def trim(
    kept: RetainedDataset,
    settings: Settings,
    *,
    older_than: float = RETENTION,
    began: Callable[[Trim], None] = lambda _: None,
    deleted: Callable[[Entry], None] = lambda _: None,
) -> Trim:
    """Do it. What a trim before has left undone is done, too.

    Args:
        began: told what will go, once that is decided. `deleted`: told of each file.

    Raises:
        As `plan_trim`; StoreError: the rest is for the next trim.
    """
    while True:
        planned = await plan_trim(kept, settings, older_than=older_than)
        lowest = planned.seen.lowest
        higher = {
            found.partition: found.upto for found in planned.partitions if found.upto > lowest.get(found.partition, 0)
        }
        if not higher or await decide(kept.store, kept.readers, planned.seen, higher):
            break
    began(planned)
    doomed = {found.partition: found for found in planned.partitions if found.going.files}
    await gather(list(doomed), lambda partition: _carry_out(kept, doomed[partition], deleted))
    return planned


async def _carry_out(kept: RetainedDataset, planned: PartitionTrim, deleted: Callable[[Entry], None]) -> None:
    await raise_boundary(kept.store, kept.boundary(planned.partition), planned.upto)

    async def delete(entry: Entry) -> None:
        await kept.store.delete(entry.key)
        deleted(entry)

    # First: as long as files are left to go, the next trim comes here again, if this one dies.
    beside = await kept.beside(planned.partition)
    await gather([key for number, key in beside if planned.takes(number)], kept.store.delete)
    async for _, files in _pages(kept, planned.partition):
        doomed = [file.entry for file in files if planned.takes(file.number)]
        for start in range(0, len(doomed), _AT_ONCE):
            entries = doomed[start : start + _AT_ONCE]
            await gather(entries, delete)
        if files and files[-1].number >= planned.end:
            break
    await gather(planned.compacted, delete)
