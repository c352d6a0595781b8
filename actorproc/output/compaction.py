"""Compaction: plan which files to merge, merge them, switch readers to the merged file, delete unused ones.

Protocol: docs/protocol.md. Model: tests/protocol/compaction_model.py. A job that is killed, paused or run twice leaves
unused files, but never repeats or loses a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from actorproc.errors import CorruptObject, SourceError
from actorproc.output.checkpoint import read_checkpoint
from actorproc.output.compacted_file import CompactedCommits
from actorproc.output.file_merger import FileMerger
from actorproc.output.output_files import OutputFiles, key_of, originals
from actorproc.retention.boundary import Boundary, CompactedRange, change_boundary, read_boundary
from actorproc.retention.kept_files import KeptFiles
from actorproc.retention.readers import read_registry
from actorproc.runtime.clock import Clock
from actorproc.runtime.tasks import gather
from actorproc.storage.backend import Entry
from actorproc.storage.listing import DataFile
from actorproc.storage.names import ProcessorLayout, number_before_id, number_of
from actorproc.storage.store import Store

_FETCHED_BYTES = 32 * 2**20  # of originals, fetched concurrently
_FETCHED_FILES = 64
_LISTED = 8  # partitions listed at a time: a busy one makes half a million files a month, 500 bytes each in memory


class FileGroup(NamedTuple):
    """Consecutive files of a partition that are merged into one. Originals, of which there may be millions, are listed
    again before they are merged."""

    partition: str
    compacted: tuple[DataFile, ...]
    originals: range
    """Their numbers, after the compacted files."""
    size: int
    """Bytes of all files."""
    time: float
    """When its newest commit was created."""
    within: bool = False
    """Whether the merged file is put into the folder of the output, where a table can name it."""

    @classmethod
    def of(cls, partition: str, files: Sequence[DataFile]) -> FileGroup:
        """The group of neighbours, compacted files first."""
        compacted, end = tuple(file for file in files if file.compacted), files[-1].next
        numbers = range(next((file.number for file in files if not file.compacted), end), end)
        return cls(partition, compacted, numbers, sum(file.size for file in files), max(file.time for file in files))

    @property
    def files(self) -> int:
        """Number of files."""
        return len(self.compacted) + len(self.originals)

    @property
    def first(self) -> int:
        return self.compacted[0].number if self.compacted else self.originals.start

    @property
    def next(self) -> int:
        return self.originals.stop


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The groups to merge in a partition, and the boundary on which the plan rests."""

    partition: str
    boundary: Boundary
    groups: tuple[FileGroup, ...]
    files: int
    """Number of all files of the partition."""
    size: int
    """Bytes of all files of the partition."""
    lost: SourceError | None = None
    """A file is missing: only the files before it can be compacted."""


async def plan(
    store: Store, layout: ProcessorLayout, partitions: Sequence[str], *, target_size: int, older_than: float
) -> list[CompactionPlan]:
    """Plan each partition. Leaves files that a worker may walk over, and files younger than `older_than` seconds.

    Holds the listings of `_LISTED` partitions in memory.
    """
    before = await store_now(store, layout) - older_than
    within = (await read_registry(store, layout.readers)).has_table_within
    where = OutputFiles(layout)
    checkpoints = await gather(partitions, lambda partition: read_checkpoint(store, layout, partition))
    plans = []
    for start in range(0, len(partitions), _LISTED):
        some = dict.fromkeys(partitions[start : start + _LISTED], 0)
        for partition, (files, boundary) in (await where.listed(store, some)).items():
            checkpoint = known.number if (known := checkpoints[partition]) else 0
            compactable, lost = _compactable(store, layout, partition, files, boundary, checkpoint, before)
            apart = {held.first for held in boundary.ranges if held.reset}
            groups = [FileGroup.of(partition, group) for group in grouped(compactable, target_size, apart)]
            if within:
                groups = _within(layout, partition, compactable, groups)
            size = sum(file.size for file in files)
            plans.append(CompactionPlan(partition, boundary, tuple(groups), len(files), size, lost))
    return plans


def _within(
    layout: ProcessorLayout, partition: str, files: Sequence[DataFile], groups: Sequence[FileGroup]
) -> list[FileGroup]:
    """The groups, merged into the folder of the output. Compacted files outside of it are moved there."""
    grouped = {file.key for group in groups for file in group.compacted}
    moved = [
        FileGroup.of(partition, [file])
        for file in files
        if file.key.startswith(layout.compacted) and file.key not in grouped
    ]
    return [group._replace(within=True) for group in sorted([*groups, *moved], key=lambda group: group.first)]


async def store_now(store: Store, layout: ProcessorLayout) -> float:
    """The store's own clock."""
    return (await store.list(layout.checkpoints, limit=1)).now


def _compactable(
    store: Store,
    layout: ProcessorLayout,
    partition: str,
    files: Sequence[DataFile],
    boundary: Boundary,
    checkpoint: int,
    before: float,
) -> tuple[list[DataFile], SourceError | None]:
    """The files that no worker or reader of the newest commit walks over any more, created `before` that time.

    If one of them is missing: the files before it, and an error."""
    expected = boundary.lowest
    found: list[DataFile] = []
    for file in files:
        # Walks begin at the checkpoint's number, or at the commit before it.
        if file.next >= checkpoint or file.time > before:
            break
        if file.number != expected:
            return found, SourceError(
                f"{layout.output_file(partition, expected)} in {store.url} is missing, although {file.key} exists: it "
                "was deleted by hand. Restore it, or trim the output up to there"
            )
        expected = file.next
        holder = boundary.range_of(file.number)
        if holder is None or holder.first == file.number:  # else trimmed in part
            found.append(file)
    return found, None


def grouped(files: Sequence[DataFile], target_size: int, apart: Collection[int] = ()) -> list[list[DataFile]]:
    """Group neighbours of up to `target_size` bytes together. A file whose number is in `apart` begins a group.

    Files of at least half of that size are not extended, nor is a compacted file that is larger than its new neighbours
    together. So a row is rewritten only as often as sizes double. Originals stay only at the end, because below the
    first number that is read from `output/`, all files are compacted. So a single original may be rewritten alone.
    """
    groups: list[list[DataFile]] = []
    room = 0
    for file in files:
        if file.size > room or file.number in apart:
            groups.append([])
            room = target_size
        groups[-1].append(file)
        room = 0 if file.size >= target_size // 2 and len(groups[-1]) == 1 else room - file.size
    chosen = [_worthwhile(group) for group in groups]
    while chosen and len(chosen[-1]) < 2:
        chosen.pop()
    return [group for group in chosen if group]


def _worthwhile(group: list[DataFile]) -> list[DataFile]:
    """The group without leading compacted files that are larger than the rest."""
    while group and group[0].compacted and group[0].size > sum(file.size for file in group[1:]):
        group = group[1:]
    return group


Merged = tuple[FileGroup, CompactedRange]
"""Files, and the one that has their rows."""


async def merge(store: Store, layout: ProcessorLayout, group: FileGroup, schema: pa.Schema) -> list[Merged] | None:
    """Write the rows of a group into a new file that no reader uses yet. None if the files have changed.

    There are several new files if commits in the group are resets: each begins one (rule `apart`). Holds one new file
    and some `_FETCHED_BYTES` of the others in memory.

    Args:
        schema: of the dataset, with `_sequence`.

    Raises:
        CorruptObject: a file is corrupt, or one that readers use is missing.
    """
    if (found := await _files(store, layout, group)) is None:
        return None
    moved = layout.compacted if group.within else None
    merging, done = _Merging(schema, store.clock, moved), list[Merged]()
    for files in _portions(found):
        fetched = await gather(files, lambda file: store.get(file.key, size=file.size))
        bodies = list[bytes]()
        for file, stored in fetched.items():
            if stored is None and file.compacted and await _is_led_to(store, layout, group, file):
                why = "is missing, although readers use it: it was deleted by hand. Restore it, or trim up to it"
                raise CorruptObject(file.key, why, store.url)
            if stored is None or (file.tag and stored.tag != file.tag):
                return None
            bodies.append(stored.body)
        for finished in await store.clock.run_in_thread(merging.add, files, bodies):
            done.append(await _write(store, layout, group, finished))
    for finished in await store.clock.run_in_thread(merging.finish):
        done.append(await _write(store, layout, group, finished))
    return done


class _Finished(NamedTuple):
    """A merged file."""

    files: list[DataFile]
    body: bytes
    contents: CompactedCommits


class _Merging:
    """Merges files, and begins a new one at each reset. CPU-heavy.

    Args:
        moved: folder from which compacted files are moved.
    """

    def __init__(self, schema: pa.Schema, clock: Clock, moved: str | None) -> None:
        self._schema, self._clock, self._moved = schema, clock, moved
        self._files: list[DataFile] = []
        self._merger: FileMerger | None = None

    def add(self, files: Sequence[DataFile], bodies: Sequence[bytes]) -> list[_Finished]:
        """Add the next files. Returns what is finished by them."""
        finished = list[_Finished]()
        for file, body in zip(files, bodies, strict=True):
            if not self._added(file, body):
                finished += self.finish()
                self._added(file, body)
            self._files.append(file)
        return finished

    def _added(self, file: DataFile, body: bytes) -> bool:
        if self._merger is None:
            self._merger = FileMerger(self._schema, file.number, self._clock.nonce())
        return self._merger.add(file.key, body, compacted=file.compacted)

    def finish(self) -> list[_Finished]:
        """The file that was begun. Nothing, if it would only be a copy of a compacted file."""
        files, merger = self._files, self._merger
        self._files, self._merger = [], None
        if merger is None or (len(files) == 1 and files[0].compacted and not self._moves(files[0])):
            return []
        return [_Finished(files, *merger.finish())]

    def _moves(self, file: DataFile) -> bool:
        return self._moved is not None and file.key.startswith(self._moved)


async def _write(store: Store, layout: ProcessorLayout, of: FileGroup, finished: _Finished) -> Merged:
    files, body, contents = finished
    await store.put(layout.compacted_file(of.partition, contents.first, contents.put_id, within=of.within), body)
    group, rows = FileGroup.of(of.partition, files)._replace(within=of.within), int(contents.rows.sum())
    return group, CompactedRange(
        group.first, group.next, contents.put_id, rows, len(body), contents.last.sequence, group.time, since=0.0,
        reset=contents.reset is not None, within=of.within,
    )  # fmt: skip


async def _files(store: Store, layout: ProcessorLayout, group: FileGroup) -> list[DataFile] | None:
    """The files of a group; None if they have changed since it was planned."""
    numbers = group.originals
    listed = await originals(store, layout, group.partition, numbers.start, len(numbers)) if numbers else []
    found = [*group.compacted, *listed]
    if [file.number for file in listed] != list(numbers) or FileGroup.of(group.partition, found) != group._replace(
        within=False
    ):
        return None
    return found


async def _is_led_to(store: Store, layout: ProcessorLayout, group: FileGroup, file: DataFile) -> bool:
    """Whether the boundary refers to the file."""
    holder = (await read_boundary(store, layout.boundary(group.partition))).range_of(file.number)
    return key_of(layout, group.partition, file.number, holder) == file.key


def _portions(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Split the files into portions that are fetched together."""
    portion: list[DataFile] = []
    for file in files:
        if (portion and sum(f.size for f in portion) + file.size > _FETCHED_BYTES) or len(portion) == _FETCHED_FILES:
            yield portion
            portion = []
        portion.append(file)
    if portion:
        yield portion


async def switch(
    store: Store, layout: ProcessorLayout, planned: CompactionPlan, done: Sequence[Merged]
) -> list[CompactedRange]:
    """Switch readers to the merged files in one step.

    Returns:
        The ranges that were switched: not those that were trimmed, compacted or swept by others since they were
        planned.
    """
    now = await store_now(store, layout)
    fresh = [(group, replace(made, since=now)) for group, made in done]

    def change(found: Boundary) -> Boundary:
        for group, made in fresh:
            if found.sweeps == planned.boundary.sweeps and _fits(layout, found, group):
                kept = [r for r in found.ranges if not group.first <= r.first < group.next]
                found = replace(found, ranges=tuple(sorted([*kept, made], key=lambda r: r.first)))
        return found

    after = await change_boundary(store, layout.boundary(planned.partition), change)
    return [made for _, made in fresh if made in after.ranges]


def _fits(layout: ProcessorLayout, found: Boundary, group: FileGroup) -> bool:
    """Whether the boundary still refers to the files of the group."""
    inside = [key_of(layout, group.partition, r.first, r) for r in found.ranges if group.first <= r.first < group.next]
    return (
        found.lowest <= group.first
        and inside == [file.key for file in group.compacted]
        and (not group.originals or found.originals == group.originals.start)
    )


async def sweep(store: Store, layout: ProcessorLayout, partition: str, keep: float, kept: KeptFiles) -> list[Entry]:
    """Delete compacted files that have been unused for `keep` seconds: replaced, or left by a job that died.

    Args:
        kept: those that tables name.
    """
    folders = [layout.compacted_dir(partition, within=within) for within in (False, True)]
    listings = await gather(folders, store.list)
    now = max(listing.now for listing in listings.values())
    entries = [
        entry
        for folder, listing in listings.items()
        for entry in listing.entries
        if number_before_id(folder, entry.key) is not None  # not a foreign object
    ]
    gone: list[Entry] = []

    def announced(found: Boundary) -> Boundary:
        named = {key_of(layout, partition, r.first, r) for r in found.ranges}
        gone[:] = [
            entry
            for entry in entries
            if entry.key not in named
            and kept.frees(partition, entry.key, found.changes)
            and now - entry.modified >= keep
            # A replaced file is read by those who planned before its replacement.
            and ((holder := found.range_of(number_of(entry.key))) is None or now - holder.since >= keep)
        ]
        return replace(found, sweeps=found.sweeps + 1) if gone else found

    # From now on a job that made one of these and slept cannot switch readers to it.
    await change_boundary(store, layout.boundary(partition), announced)
    for entry in gone:
        await store.delete(entry.key)
    return gone
