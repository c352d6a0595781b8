"""Trimming: what nobody needs any more is made void, then deleted. Protocol: docs/protocol.md, tests/protocol/trim_model.py."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from actorproc.actor import gather
from actorproc.errors import UsageError
from actorproc.keeping.kept import Kept
from actorproc.keeping.positions import Standing, standings
from actorproc.keeping.registry import Registry, decide, read_registry
from actorproc.layout import number_of
from actorproc.output.boundary import RETENTION, raise_boundary
from actorproc.settings import Settings
from actorproc.store import Entry

_FILE = re.compile(r"/\d+\.parquet$")
_PAGE = 1_000
_AT_ONCE = 1_000  # files deleted at once, of a partition; the store has its own limit


class Hold(NamedTuple):
    """Files from `number` on are kept, and `why`."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class PartitionTrim:
    """What a trim does to a partition: `files` go, and numbers below `upto` count no more."""

    partition: str
    upto: int
    files: Sequence[Entry]
    ages: Sequence[float]
    """Of the files, in seconds by the store's clock."""
    hold: Hold
    """What keeps the rest."""

    @property
    def size(self) -> int:
        """Bytes that are freed."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Trim:
    """What a trim would do, or has done; and where the readers stood."""

    partitions: Sequence[PartitionTrim]
    readers: Sequence[Standing]
    seen: Registry

    @property
    def files(self) -> int:
        return sum(len(partition.files) for partition in self.partitions)

    @property
    def size(self) -> int:
        return sum(partition.size for partition in self.partitions)


async def plan_trim(kept: Kept, settings: Settings, *, older_than: float = RETENTION) -> Trim:
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


async def _plan(kept: Kept, partition: str, lowest: int, hold: Hold, older_than: float) -> PartitionTrim:
    """Files below `lowest` are void already, however they came there, and go in any case; so do those that were compacted."""
    upto, files, ages = lowest, list[Entry](), list[float]()
    compacted, replaced = await kept.compacted(partition), await kept.replaced(partition, older_than)
    now = (await kept.store.list(kept.folder(partition), limit=1)).now if compacted else 0.0
    for file in compacted:
        if file.number > hold.number:
            break
        upto = max(upto, file.number)
        if now - file.time < older_than and file.number < hold.number:
            hold = Hold(file.number, f"younger than {older_than / 3600:g} h")
    async for number, age, entry in _files(kept, partition):
        if number >= lowest:
            if age < older_than and number < hold.number:
                hold = Hold(number, f"younger than {older_than / 3600:g} h")
            if number > hold.number:
                break
            upto = max(upto, number)  # passed by whoever is beyond it; whoever stands in its midst still reads it
        files.append(entry)
        ages.append(age)
    count = sum(number_of(file.key) < upto for file in files)
    going = {file.key: (file, age) for file, age in zip(files[:count], ages[:count], strict=True)}
    going |= {file.key: (file, now - file.modified) for file in replaced}
    for file in compacted:
        if file.next <= upto:
            going[file.key] = Entry(file.key, "", file.size, file.time), now - file.time
    return PartitionTrim(partition, upto, [f for f, _ in going.values()], [age for _, age in going.values()], hold)


async def _files(kept: Kept, partition: str) -> AsyncIterator[tuple[int, float, Entry]]:
    """Number and age of each file, in order; listed as they are asked for."""
    folder = after = kept.folder(partition)
    while True:
        listing = await kept.store.list(folder, after, _PAGE)
        for entry in listing.entries:
            if _FILE.search(entry.key):  # anything else is not ours
                yield number_of(entry.key), listing.now - entry.modified, entry
        if len(listing.entries) < _PAGE:
            return
        after = listing.entries[-1].key


async def trim(
    kept: Kept,
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
    doomed = {found.partition: found for found in planned.partitions if found.files}
    await gather(list(doomed), lambda partition: _carry_out(kept, doomed[partition], deleted))
    return planned


async def _carry_out(kept: Kept, planned: PartitionTrim, deleted: Callable[[Entry], None]) -> None:
    await raise_boundary(kept.store, kept.boundary(planned.partition), planned.upto)

    async def delete(key: str) -> None:
        await kept.store.delete(key)
        deleted(files[key])

    for start in range(0, len(planned.files), _AT_ONCE):
        files = {file.key: file for file in planned.files[start : start + _AT_ONCE]}
        beside = await kept.beside(planned.partition, list(files))
        await gather(beside, kept.store.delete)  # first: only the files lead there
        await gather(list(files), delete)
