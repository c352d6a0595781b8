"""Traces a record: the commits that it is in, with its rows and its dead letter, and the record itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import anyio
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.admin.dead_letters import DeadLetters, LetterId
from actorproc.admin.own_source import own_source
from actorproc.admin.sinks import read_sinks
from actorproc.config.settings import Settings
from actorproc.errors import ActorprocError, CorruptObject, PartitionGone, SourceError, UsageError
from actorproc.output.chain import ChainEnd, Commit, OutputChain
from actorproc.output.compacted_file import CompactedCommits
from actorproc.output.letter import record_fields
from actorproc.output.output_files import OutputFiles
from actorproc.output.row_reader import FileSlice, partitions_with_state, read_rows
from actorproc.records import SEQUENCE, Record
from actorproc.retention.boundary import NOTHING_TRIMMED
from actorproc.retention.readers import read_registry
from actorproc.rows.json_values import rows_to_json
from actorproc.runtime.error_text import describe_error
from actorproc.sources.protocol import Source
from actorproc.storage.listing import DataFile
from actorproc.storage.names import ProcessorLayout, natural
from actorproc.storage.parquet import read_footer
from actorproc.storage.store import Store

MOST_ROWS = 100
"""Rows of one commit that are shown."""

_SOURCE_TIME = 20.0  # seconds in which the source must give the record
_MOST_PASSED = 200_000  # records of the source that are read to find it


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """A file with the commit of the record, or with rows of it: after a reset, or by timers, there may be several.

    Attributes:
        first, last: numbers of the commits in the file that has it: the same, unless the file is compacted.
        time: of the commit, in seconds since 1970. Like `host` and `epoch` not known of a compacted file.
        rows: the output rows that belong to the record, as JSON objects; at most `MOST_ROWS`.
        count: how many there are.
    """

    first: int
    last: int
    file: str
    rows: list[msgspec.Raw]
    count: int
    host: str | None = None
    epoch: int | None = None
    time: float | None = None


class SinkTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the rows of the record are in a sink.

    Attributes:
        state: `delivered`, `partly` (rows of some commits), `waits`, or `before its start`.
        next: the commit that the sink gets next.
    """

    sink: str
    state: str
    next: int


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a record.

    Attributes:
        outcome: a sentence.
        committed_up_to: sequence; None: nothing is committed yet.
        passes: the oldest first. Empty for a record that left neither row nor letter: it is in no file of its own.
        letter: its latest dead letter.
        sinks: where its rows are; empty without rows or sinks. An option `where` of a sink may leave rows out.
        record: as the source has it. See `output.dead_letters.record_fields`.
        record_missing: why `record` is None.
    """

    partition: str
    sequence: int
    outcome: str
    committed_up_to: int | None
    passes: list[Pass]
    letter: dict[str, Any] | None
    record: dict[str, Any] | None
    record_missing: str | None
    sinks: list[SinkTrace] = []


async def trace(
    store: Store,
    layout: ProcessorLayout,
    settings: Settings,
    partition: str,
    sequence: int,
    source: Source | str | None = None,
) -> Trace:
    """Find a record by partition and sequence. Writes nothing.

    Args:
        source: the source or its URL, if the recorded one is not to be used.

    Raises:
        UsageError: there is no such partition.
        CorruptObject: a stored object cannot be read.
        StoreError: the store failed.
    """
    tip = await OutputChain(store, layout, partition).tip()
    if tip is None:
        known = sorted(await partitions_with_state(store, layout), key=natural)
        raise UsageError(f"no partition {partition!r}; there are: {', '.join(known) or 'none yet'}")
    outputs = OutputFiles(layout)
    files, boundary = (await outputs.listed(store, {partition: 0}))[partition]
    finder = _Finder(store, layout, outputs, partition, sequence)
    found = [passes for run in _runs(files, tip) if (passes := await finder.find(run))]
    passes = [one for run in found for one in run]
    letter = await _letter(store, layout, partition, sequence)
    sinks = await _sinks(store, layout, partition, [one for one in passes if one.count])
    record, missing = await _record(store, layout, settings, partition, sequence, source)
    trimmed = boundary.lowest > NOTHING_TRIMMED.lowest
    return Trace(
        partition=partition, sequence=sequence, passes=passes, letter=letter, record=record, record_missing=missing,
        sinks=sinks,
        committed_up_to=tip.cursor.sequence if tip.cursor.sequence >= 0 else None,
        outcome=_outcome(sequence, tip, found, letter, trimmed=trimmed),
    )  # fmt: skip


async def _sinks(store: Store, layout: ProcessorLayout, partition: str, passes: Sequence[Pass]) -> list[SinkTrace]:
    if not passes:
        return []
    registry = await read_registry(store, layout.readers)
    found = await read_sinks(store, layout, [partition]) if registry.sinks else []
    starts = {name: entry.part(partition).start for name, entry in registry.sinks.items()}
    return [
        SinkTrace(sink=sink.name, state=_delivered(passes, starts.get(sink.name, 0), one.at), next=one.at)
        for sink in found
        for one in sink.partitions
    ]


def _delivered(passes: Sequence[Pass], start: int, position: int) -> str:
    """Of the passes that the sink gets. In a compacted file the number of the commit is not known exactly."""
    wanted = [one for one in passes if one.last >= start]
    if not wanted:
        return "before its start"
    if all(one.last < position for one in wanted):
        return "delivered"
    return "waits" if all(one.first >= position for one in wanted) else "partly"


def _outcome(
    sequence: int, tip: ChainEnd, runs: Sequence[Sequence[Pass]], letter: dict[str, Any] | None, *, trimmed: bool
) -> str:
    rows = sum(one.count for run in runs for one in run)
    said = [f"it has {rows:,} row{'s' * (rows != 1)} in the output"] if rows else []
    if letter is not None:
        said.append("it is a dead letter" + (", which was replayed" if letter["replayed"] else ""))
    if sequence > tip.cursor.sequence and tip.ended:
        said.append(f"the partition has ended at {tip.cursor.sequence}")
    elif sequence > tip.cursor.sequence:
        said.append("it waits to be processed again" if said else "it is not committed yet")
    if len(runs) > 1:
        said.append(f"it was processed {len(runs)} times, after resets")
    if said:
        return "; ".join(said)
    lost = "they were trimmed or purged" if trimmed else "its dead letter was purged"
    return f"it was processed, or skipped by a reset, and left no row and no dead letter, or {lost}"


def _runs(files: Sequence[DataFile], tip: ChainEnd) -> Iterator[list[DataFile]]:
    """Cuts the files where a reset set the sequence back: it grows within each run. A compacted file that contains a
    reset is a run by itself, as is each file before the resets that are still known."""
    known = [reset.number for reset in tip.resets]
    oldest = known[0] if tip.totals.resets > len(known) and known else 0
    alone = [file for file in files if file.number < oldest or any(file.number < n < file.next for n in known)]
    yield from ([file] for file in alone)
    for first, stop in pairwise([oldest, *known, tip.number]):
        yield [file for file in files if first <= file.number < stop and file not in alone]


class _Finder:
    """Finds the files of a run that have a record."""

    def __init__(
        self, store: Store, layout: ProcessorLayout, outputs: OutputFiles, partition: str, sequence: int
    ) -> None:
        self._store = store
        self._outputs = outputs
        self._partition = partition
        self._sequence = sequence

    async def find(self, run: Sequence[DataFile]) -> list[Pass]:
        """The file with the record comes first. Those after it may have rows of timers that fired after the record."""
        low, high = 0, len(run) if len(run) > 1 else 0  # a file alone may end before a record that it has
        while low < high:
            middle = (low + high) // 2
            if _end(await self._contents(run[middle])) >= self._sequence:
                high = middle
            else:
                low = middle + 1
        found = []
        for file in run[low:]:
            contents = await self._contents(file)
            if (one := await self._pass(file, contents)) is not None:
                found.append(one)
            if _end(contents) > self._sequence:
                break
        return found

    async def _contents(self, file: DataFile) -> Commit | CompactedCommits | None:
        """None: it was trimmed or compacted meanwhile."""
        footer = await read_footer(self._store, file.key)
        if footer is None:
            return None
        if file.compacted:
            return CompactedCommits.from_metadata(file.key, footer.metadata)
        return Commit.from_footer(file.key, footer)

    async def _pass(self, file: DataFile, found: Commit | CompactedCommits | None) -> Pass | None:
        if isinstance(found, Commit) and (
            found.reset or not found.first.sequence <= self._sequence <= found.next.sequence
        ):
            return None
        rows: list[msgspec.Raw] = []
        count = 0
        async for batch in read_rows(self._store, FileSlice(self._partition, file, self._outputs)):
            own = batch.filter(pc.equal(batch[SEQUENCE.name], self._sequence))
            count += own.num_rows
            rows += _rendered(file.key, own.slice(0, MOST_ROWS - len(rows)))
        if isinstance(found, Commit) and (count or found.first.sequence < self._sequence):
            return Pass(
                first=file.number, last=file.number, file=file.key, rows=rows, count=count, host=found.host,
                epoch=found.epoch, time=found.time,
            )  # fmt: skip
        return Pass(first=file.number, last=file.next - 1, file=file.key, rows=rows, count=count) if count else None


def _end(contents: Commit | CompactedCommits | None) -> int:
    """Sequence up to which the commits of a file go."""
    if contents is None:
        return -1
    return (contents.last if isinstance(contents, CompactedCommits) else contents.next).sequence


def _rendered(key: str, rows: pa.RecordBatch) -> list[msgspec.Raw]:
    try:
        return [msgspec.Raw(line) for line in rows_to_json(rows).to_pylist()]
    except ValueError as error:  # text that is not UTF-8
        raise CorruptObject.unreadable(key, error) from None


async def _letter(store: Store, layout: ProcessorLayout, partition: str, sequence: int) -> dict[str, Any] | None:
    try:
        return await (await DeadLetters.opened(store, layout)).find(LetterId(partition, sequence))
    except UsageError:
        return None


async def _record(
    store: Store, layout: ProcessorLayout, settings: Settings, partition: str, sequence: int, given: Source | str | None
) -> tuple[dict[str, Any] | None, str | None]:
    """The record, or why there is none."""
    try:
        async with own_source(store, layout, settings, given) as source:
            with anyio.fail_after(_SOURCE_TIME):
                record = await _read(source, partition, sequence)
    except TimeoutError:
        return None, f"the source did not give it within {_SOURCE_TIME:g} s"
    except (UsageError, SourceError, PartitionGone) as error:
        return None, str(error)
    except ActorprocError as error:
        return None, describe_error(error)
    return (None, "the source does not have it, or not any more") if record is None else (record_fields(record), None)


async def _read(source: Source, partition: str, sequence: int) -> Record | None:
    passed = 0
    newest = (await source.end(partition)).sequence
    if newest is not None and sequence > newest:
        raise UsageError(f"there is no such record yet: the newest is {newest}")
    position = await source.position_at(partition, sequence)
    async with aclosing(source.read(partition, position)) as chunks:
        async for chunk in chunks:
            for record in chunk.batch:
                if record.sequence == sequence:
                    return record
                if record.sequence > sequence:
                    return None
            passed += len(chunk.batch)
            if chunk.ended or not len(chunk.batch) or passed > _MOST_PASSED:
                return None
    return None
