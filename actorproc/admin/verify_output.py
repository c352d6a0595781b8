"""Verifies one partition of an output: every commit, compacted file and dead letter, and the checkpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from actorproc.admin.damage import Damage, Verification, runs
from actorproc.counts import Counts
from actorproc.errors import CorruptObject, Fenced
from actorproc.output.chain import Commit, OutputChain
from actorproc.output.checkpoint import Checkpoint, read_checkpoint
from actorproc.output.compacted_file import CompactedCommits, batches_of
from actorproc.output.letter import read_letters
from actorproc.output.output_files import key_of
from actorproc.records import SEQUENCE, Cursor
from actorproc.retention.boundary import NOTHING_TRIMMED, CompactedRange, read_boundary
from actorproc.state.reading import read_state
from actorproc.storage.backend import Entry
from actorproc.storage.listing import numbered_files
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.parquet import footer_from, open_parquet
from actorproc.storage.store import Store

T = TypeVar("T")

_ROWS = 10_000  # decoded at once


@dataclass(frozen=True, slots=True)
class _Reached:
    """The partition at the end of a commit."""

    number: int
    cursor: Cursor
    totals: Counts


class PartitionCheck:
    """Reads everything of one partition once.

    Hosts may run: the checkpoint is read first and the boundary after the listing, so their commits, trims
    and compactions meanwhile are no damage.
    """

    def __init__(self, store: Store, layout: ProcessorLayout, partition: str, result: Verification) -> None:
        self._store = store
        self._layout = layout
        self._partition = partition
        self._result = result
        self._chain = OutputChain(store, layout, partition)
        self._put_ids: dict[str, int] = {}
        self._letters: dict[int, int] = {}  # number of a commit that was read -> its dead letters
        self._boundary = NOTHING_TRIMMED
        self._has_state = False
        self.checkpoint: Checkpoint | None = None

    async def run(self) -> None:
        self.checkpoint = await self._sound(read_checkpoint(self._store, self._layout, self._partition))
        listed = dict(await numbered_files(self._store, self._layout.output_dir(self._partition)))
        await self._look()
        reached = await self._check_compacted()
        await self._check_commits(listed, reached)
        await self._check_published()
        if self._has_state or (self.checkpoint is not None and self.checkpoint.state):
            await self._sound(read_state(self._store, self._layout, self._partition))

    async def _sound(self, read: Awaitable[T]) -> T | None:
        """The result of the read; None, and a damage, if the object is corrupt."""
        try:
            return await read
        except CorruptObject as error:
            self._result.found(Damage.of(error))
            return None

    async def _look(self) -> None:
        boundary = await self._sound(read_boundary(self._store, self._layout.boundary(self._partition)))
        self._boundary = boundary or self._boundary

    # Compacted commits

    async def _check_compacted(self) -> _Reached | None:
        """Returns where the compacted commits end, if there are any and the last are sound."""
        reached = None
        for held in self._boundary.ranges:
            found = await self._sound(self._compacted(held))
            reached = None if found is None else _Reached(held.next - 1, found.last, found.totals)
        return reached

    async def _compacted(self, held: CompactedRange) -> CompactedCommits | None:
        key = key_of(self._layout, self._partition, held.first, held)
        stored = await self._store.get(key, size=held.size)
        if stored is None:
            await self._look()
            if held in self._boundary.ranges:
                self._missing(key, f"is missing; it holds the commits {held.first} to {held.next - 1}")
            return None
        self._result.checked["files of compacted commits"] += 1
        return await self._store.clock.run_in_thread(_examine_compacted, key, stored.body, held)

    # Commits

    async def _check_commits(self, listed: Mapping[int, Entry], reached: _Reached | None) -> None:
        expected = max([*(number + 1 for number in listed), 0 if self.checkpoint is None else self.checkpoint.number])
        missing: list[int] = []
        for number in range(self._boundary.originals, expected):
            entry = listed.get(number)
            commit = None if entry is None else await self._sound(self._commit(number, entry))
            if commit is not None:
                self._check_step(number, commit, reached)
                reached = _Reached(number, commit.next, commit.totals)
            elif entry is None:
                missing.append(number)
            if self.checkpoint is not None and number == self.checkpoint.number - 1:
                self._check_checkpoint(reached)
        await self._look()
        for first, last in runs([number for number in missing if number >= self._boundary.originals]):
            named = f"commit {first} is" if first == last else f"the commits {first} to {last} are"
            self._missing(self._layout.output_file(self._partition, first), f"{named} missing")
        if self.checkpoint is None and expected:
            self._missing(self._layout.checkpoint(self._partition), "the checkpoint is missing")

    async def _commit(self, number: int, entry: Entry) -> Commit | None:
        stored = await self._store.get(entry.key, size=entry.size)
        if stored is None:
            await self._look()
            if number >= self._boundary.originals:
                self._missing(entry.key, f"commit {number} was deleted while it was read")
            return None
        self._result.checked["commits"] += 1
        commit = await self._store.clock.run_in_thread(_examine_commit, entry.key, stored.body)
        self._letters[number] = 0
        self._has_state = self._has_state or commit.state_size > 0
        if commit.letters_size:
            try:
                letters = await self._chain.letters(number)
            except Fenced:
                return commit  # trimmed or compacted meanwhile
            self._letters[number] = letters.count(b"\n")
            await self._check_letters(number, letters)
        return commit

    def _check_step(self, number: int, commit: Commit, before: _Reached | None) -> None:
        key = self._layout.output_file(self._partition, number)
        if (original := self._put_ids.setdefault(commit.put_id, number)) != number:
            self._result.found(Damage(key, f"is a copy of commit {original}: its rows are read twice"))
            return
        if before is None or before.number != number - 1:
            return
        if commit.first.sequence < before.cursor.sequence:
            what = f"begins after record {commit.first.sequence}, but commit {before.number} ends at "
            self._result.found(Damage(key, f"{what}{before.cursor.sequence}: rows are read twice"))
        rows, letters = before.totals.rows + commit.rows, before.totals.dead_letters + self._letters[number]
        if (commit.totals.rows, commit.totals.dead_letters) != (rows, letters):
            what = f"counts {commit.totals.rows} rows and {commit.totals.dead_letters} dead letters so far, but the "
            self._result.found(Damage(key, f"{what}commits have {rows} and {letters}"))

    def _check_checkpoint(self, newest: _Reached | None) -> None:
        """Compare the checkpoint with `newest`, the commit right before its number."""
        known, key = self.checkpoint, self._layout.checkpoint(self._partition)
        if known is None or newest is None or newest.number != known.number - 1:
            return
        if known.cursor.sequence < newest.cursor.sequence:
            what = f"is at record {known.cursor.sequence}, but commit {newest.number} ends at {newest.cursor.sequence}"
            self._result.found(Damage(key, f"{what}: the records in between would be processed again"))
        counted, have = known.totals, newest.totals
        if (counted.rows, counted.dead_letters) != (have.rows, have.dead_letters):
            what = f"counts {counted.rows} rows and {counted.dead_letters} dead letters, but the commits have "
            self._result.found(Damage(key, f"{what}{have.rows} and {have.dead_letters}"))

    # Dead letters

    async def _check_letters(self, number: int, letters: bytes) -> None:
        """Compare the published dead letters of a commit. An empty file is the mark of a purge."""
        key = self._layout.dead_letter_file(self._partition, number)
        published = await self._store.get(key)
        if published is None:
            if self.checkpoint is not None and number < self.checkpoint.number:  # else the next owner publishes them
                self._result.found(
                    Damage(
                        key,
                        f"the dead letters of commit {number} are missing",
                        "--repair publishes them again from the commit, also those that were purged",
                        partial(self._publish, key, letters, None),
                    )
                )
        elif published.body and published.body != letters:
            self._result.found(
                Damage(
                    key,
                    f"has other dead letters than commit {number}",
                    "--repair writes those of the commit",
                    partial(self._publish, key, letters, published.tag),
                )
            )

    async def _publish(self, key: str, letters: bytes, tag: str | None) -> None:
        await self._store.write(key, letters, tag)

    async def _check_published(self) -> None:
        """Check the published files whose commit was compacted or trimmed, or does not exist."""
        folder = self._layout.dead_letter_dir(self._partition)
        for number, entry in await numbered_files(self._store, folder, suffix=".jsonl"):
            self._result.checked["files of dead letters"] += 1
            if not entry.size:
                continue
            if self._letters.get(number) == 0 or number >= await self._end():
                what = f"commit {number} has no dead letters"
                self._result.found(Damage(entry.key, what, "look at it, and delete it if you do not know it"))
            elif number not in self._letters:
                await self._sound(read_letters(self._store, entry.key))

    async def _end(self) -> int:
        """The number after the newest commit now."""
        first = max([0, *(number + 1 for number in self._letters)])
        later = await numbered_files(self._store, self._layout.output_dir(self._partition), first)
        known = 0 if self.checkpoint is None else self.checkpoint.number
        return max([first, known, *(number + 1 for number, _ in later)])

    def _missing(self, key: str, what: str) -> None:
        self._result.found(Damage(key, what))


def _examine_commit(key: str, body: bytes) -> Commit:
    """Read everything in the file: the checksums of pages and footer, the row count, and the order of sequences.

    Raises:
        CorruptObject: something is wrong.
    """
    try:
        file = open_parquet(body)
        commit = Commit.from_footer(key, footer_from(key, file.metadata))
        rows, last = _examine_rows(file, key)
    except (pa.ArrowException, OSError) as error:
        raise CorruptObject.unreadable(key, error) from None
    if rows != commit.rows:
        raise CorruptObject(key, f"has {rows} rows, but its commit has {commit.rows}")
    if last is not None and last > commit.next.sequence:
        raise CorruptObject(key, f"has a row of record {last}, but ends at record {commit.next.sequence}")
    return commit


def _examine_compacted(key: str, body: bytes, held: CompactedRange) -> CompactedCommits:
    try:
        file = open_parquet(body)
        found = CompactedCommits.from_metadata(key, footer_from(key, file.metadata).metadata)
        rows, _ = _examine_rows(file, key, ordered=found.are_known or not found.totals.resets)
    except (pa.ArrowException, OSError) as error:
        raise CorruptObject.unreadable(key, error) from None
    has, wants = (found.first, found.next, rows), (held.first, held.next, held.rows)
    if has != wants or rows != int(found.rows.sum()):
        raise CorruptObject(key, f"holds {has} (first, next, rows), but the boundary says {wants}")
    return found


def _examine_rows(file: pq.ParquetFile, key: str, *, ordered: bool = True) -> tuple[int, int | None]:
    """Count of the rows, and the sequence of the last. Reads all columns, so that all checksums are compared.

    Args:
        ordered: whether sequences must grow. Earlier versions of actorproc merged commits across resets.
    """
    rows, last = 0, None
    for batch in batches_of(file, 0, file.metadata.num_rows, _ROWS):
        sequences = batch.column(SEQUENCE.name).to_numpy()
        if ordered and ((last is not None and sequences[0] < last) or (sequences[1:] < sequences[:-1]).any()):
            raise CorruptObject(key, "its rows are not in the order of their records")
        rows, last = rows + len(sequences), int(sequences[-1])
    return rows, last
