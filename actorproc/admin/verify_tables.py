"""Verifies the tables of an output: each committed row once, and each file there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from actorproc.admin.damage import Damage, Verification, runs
from actorproc.errors import UsageError
from actorproc.output.chain import Commit
from actorproc.output.compacted_file import CompactedCommits, rows_of_commits
from actorproc.output.output_files import key_of
from actorproc.output.row_reader import partitions_with_state
from actorproc.records import SEQUENCE
from actorproc.retention.boundary import NOTHING_TRIMMED, Boundaries, Boundary
from actorproc.runtime.tasks import gather
from actorproc.sinks.tables.open_tables import OpenTable, OpenTables
from actorproc.sinks.tables.protocol import OtherFile, TableSnapshot
from actorproc.storage.listing import numbered_files
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.parquet import footer_of, read_footer
from actorproc.storage.store import Store

_NONE = -1  # sequence of a row of others that has none


async def verify_tables(store: Store, layout: ProcessorLayout, tables: OpenTables, result: Verification) -> None:
    """Compare each table with the commits that it has taken. Hosts may run."""
    for table in tables.each:
        try:
            snapshot = await table.load()
        except UsageError as error:
            result.found(Damage(_title(table), str(error), _remedy(table)))
            continue
        result.checked["tables"] += 1
        for partition in await partitions_with_state(store, layout):
            await _TablePartition(store, layout, table, snapshot, partition, result).check()


def _title(table: OpenTable) -> str:
    return f"table {table.name}"


def _remedy(table: OpenTable) -> str:
    return f"`actorproc sinks repair {table.name}` makes the table what the output has"


@dataclass(slots=True)
class _Chain:
    """The commits of a partition that the table has taken."""

    rows: dict[int, int] = field(default_factory=dict)
    """By number, of those with rows."""
    keys: dict[int, str] = field(default_factory=dict)
    """Of the file that holds each commit."""
    resets: dict[int, int] = field(default_factory=dict)
    """The sequence to which each reset goes back, by number."""


class _TablePartition:
    """Compares one partition of a table."""

    def __init__(
        self, store: Store, layout: ProcessorLayout, table: OpenTable, found: TableSnapshot, partition: str,
        result: Verification,
    ) -> None:  # fmt: skip
        self._store, self._layout, self._partition, self._result = store, layout, partition, result
        self._table, self._found = table, found
        self._named = found.files.of(partition)
        self._others = found.files.others_of(partition)

    async def check(self) -> None:
        boundary = (await Boundaries(self._layout.boundaries).read(self._store)).get(self._partition, NOTHING_TRIMMED)
        place = self._found.places.get(self._partition)
        chain = await self._chain(boundary, 0 if place is None else place.position)
        have = await self._commits(boundary)
        missing = sorted(chain.rows.keys() - have.keys())
        self._report([n for n, count in have.items() if count > 1], "has the rows of {} twice")
        extra = [n for n in have if n >= boundary.lowest and n not in chain.rows]
        self._report(extra, "has rows of {}, which the output does not have, or the table has not taken")
        await self._check_files()
        if missing or self._others:
            await self._check_rows(chain, missing)

    def _report(self, numbers: Sequence[int], what: str) -> None:
        for first, last in runs(sorted(numbers)):
            commits = f"commit {first}" if first == last else f"the commits {first} to {last}"
            self._damage(what.format(commits))

    def _damage(self, what: str) -> None:
        self._result.found(Damage(f"{_title(self._table)}, partition {self._partition}", what, _remedy(self._table)))

    # What must be there, and what is

    async def _chain(self, boundary: Boundary, position: int) -> _Chain:
        """Commits below the boundary, or before the start of the table, are not expected."""
        chain, lowest = _Chain(), max(boundary.lowest, self._table.entry.part(self._partition).start)
        for held in boundary.ranges:
            key = key_of(self._layout, self._partition, held.first, held)
            if (footer := await read_footer(self._store, key)) is None:
                continue  # `verify` of the output says so
            contents = CompactedCommits.from_metadata(key, footer.metadata)
            for number, rows in enumerate(contents.rows.tolist(), contents.first):
                self._add(chain, number, key, rows if lowest <= number < position else 0)
            if contents.reset is not None and contents.reset.back:
                chain.resets[contents.first] = contents.reset.next.sequence
        first = max(lowest, boundary.originals)
        listed = await numbered_files(self._store, self._layout.output_dir(self._partition), first)
        keys = {number: entry.key for number, entry in listed if number < position}
        for number, footer in (await gather(list(keys), lambda n: read_footer(self._store, keys[n]))).items():
            if footer is not None:
                commit = Commit.from_footer(keys[number], footer)
                self._add(chain, number, keys[number], commit.rows)
                if commit.reset is not None and commit.reset.back:
                    chain.resets[number] = commit.reset.next.sequence
        return chain

    @staticmethod
    def _add(chain: _Chain, number: int, key: str, rows: int) -> None:
        if rows:
            chain.rows[number], chain.keys[number] = rows, key

    async def _commits(self, boundary: Boundary) -> Counter[int]:
        """How often the table has each commit, in files of ours."""
        ends = {key_of(self._layout, self._partition, r.first, r): r.next for r in boundary.ranges}
        found: Counter[int] = Counter()
        for key, file in self._named.items():
            if not file.compacted:
                found[file.first] += 1
            elif (footer := await read_footer(self._store, key)) is not None:
                contents = CompactedCommits.from_metadata(key, footer.metadata)
                found.update(n for n, rows in enumerate(contents.rows.tolist(), contents.first) if rows)
            elif key in ends:
                found.update(range(file.first, ends[key]))
        return found

    async def _check_files(self) -> None:
        folders = [self._layout.output_dir(self._partition)]
        folders += [self._layout.compacted_dir(self._partition, within=within) for within in (False, True)]
        there = {entry.key for folder in folders for entry in (await self._store.list(folder)).entries}
        if gone := [key for key in self._named if key not in there and await self._store.get(key, tail=1) is None]:
            self._damage(f"names {len(gone)} files that do not exist, for example {gone[0]}")

    # Rows in files that are not ours

    async def _check_rows(self, chain: _Chain, missing: Sequence[int]) -> None:
        """Compare the rows that files of ours lack with those in files of others."""
        wanted = Counter[int]()
        for number in missing:
            wanted.update((await self._sequences_of(chain, number)).tolist())
        has = Counter[int]()
        for name, other in self._others.items():
            if (sequences := await self._sequences(name, other)) is None:
                self._damage(f"names {name}, which cannot be read")
            else:
                has.update(sequences.tolist())
        if lacking := (wanted - has).total():
            self._damage(f"lacks {lacking:,} rows, for example of commit {missing[0]}")
        if surplus := (has - wanted).total():
            self._damage(f"has {surplus:,} rows in files of others that the output does not have")

    async def _sequences_of(self, chain: _Chain, number: int) -> np.ndarray:
        """The records whose rows commit `number` has, without those that the table takes back at a reset."""
        key = chain.keys[number]
        if (stored := await self._store.get(key)) is None:
            return np.array([], np.int64)
        part = rows_of_commits(key, footer_of(key, stored.body), number, number + 1)
        found = (await self._read(stored.body))[part.skip : part.stop]
        if self._table.entry.replaces:
            for reset, sequence in chain.resets.items():
                if reset > number:
                    found = found[found <= sequence]
        return found

    async def _sequences(self, name: str, other: OtherFile) -> np.ndarray | None:
        """The records of a file of others; None: it cannot be read."""
        if other.key is None:
            body = await self._table.committer.sink.read_elsewhere(name)
        else:
            body = None if (stored := await self._store.get(other.key)) is None else stored.body
        return None if body is None else await self._read(body)

    async def _read(self, body: bytes) -> np.ndarray:
        def read() -> np.ndarray:
            column = pq.read_table(pa.BufferReader(body), columns=[SEQUENCE.name])[SEQUENCE.name]
            return np.asarray(pc.fill_null(column, _NONE).to_numpy())

        return await self._store.clock.run_in_thread(read)


def unknown_files(found: TableSnapshot) -> Mapping[str, int]:
    """How many files of others a table names, by partition."""
    return Counter(other.partition or "?" for other in found.files.others.values())
