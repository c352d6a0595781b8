"""A processor's committed output as a dataset for Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from actorproc.errors import CorruptObject, UsageError
from actorproc.output.chain import Commit, OutputChain
from actorproc.output.compacted_file import CompactedCommits, RowRange, batches_of, rows_of_commits
from actorproc.output.output_files import OutputFiles, key_of
from actorproc.output.row_reader import partitions_with_state
from actorproc.output.schema_document import read_schema
from actorproc.output.source_identity import dataset_identity
from actorproc.records import SEQUENCE
from actorproc.retention.boundary import NOTHING_TRIMMED, Boundary
from actorproc.retention.readers import lowest_numbers
from actorproc.spark.dataset import FileRows, SparkDataset, repeat_string
from actorproc.storage.listing import DataFile
from actorproc.storage.locations import missing_processor
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.parquet import footer_from, open_parquet, read_footer
from actorproc.storage.store import Store

PARTITION = pa.field("_partition", pa.string(), nullable=False)

_BATCH_ROWS = 50_000
_CACHED_CONTENTS = 256  # compacted files
_CACHED_COUNTS = 10_000  # commits; a trigger asks for some of each partition


class Output(SparkDataset):
    """Committed rows: the handler's columns, `_partition` and `_sequence`. Numbers are commits, without gaps."""

    kind = "output"

    def __init__(self, name: str) -> None:
        self.path = name
        self._layout = ProcessorLayout(name)
        self._output_files = OutputFiles(self._layout)
        self._contents: dict[str, CompactedCommits] = {}
        self._rows_before_commit: dict[tuple[str, int], int] = {}
        """(partition, number) -> rows of the partition before that commit."""

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_contents": {}, "_rows_before_commit": {}}  # tasks do not need the driver's caches

    async def identity(self, store: Store) -> str:
        return await dataset_identity(store, self._layout) or ""

    async def schema(self, store: Store) -> pa.Schema:
        await check_processor(store, self._layout)
        return pa.schema([*await declared_schema(store, self._layout), PARTITION, SEQUENCE])

    async def partitions(self, store: Store) -> Sequence[str]:
        return await partitions_with_state(store, self._layout)

    async def lowest(self, store: Store, partitions: Sequence[str]) -> Mapping[str, int]:
        return await lowest_numbers(store, self._layout.readers, self._output_files.boundaries)

    def key(self, partition: str, number: int) -> str:
        return self._layout.output_file(partition, number)

    async def files(
        self, store: Store, starts: Mapping[str, int], limit: int | None = None
    ) -> Mapping[str, Sequence[DataFile]]:
        return await self._output_files.files(store, starts, limit)

    async def fetch(self, store: Store, partition: str, number: int) -> tuple[str, bytes] | None:
        return await self._output_files.fetch(store, partition, number)

    async def rows(self, store: Store, partition: str, first: int, stop: int) -> int:
        boundary = await self._boundary(store, partition)
        while (count := await self._count(store, partition, boundary, first, stop)) is None:
            before, boundary = boundary, (await self._output_files.look(store)).get(partition, NOTHING_TRIMMED)
            if boundary == before:
                raise self.lost_error(store, partition, first, None, "the files were deleted meanwhile")
        return count

    async def _count(self, store: Store, partition: str, boundary: Boundary, first: int, stop: int) -> int | None:
        """Rows of the commits from `first` on and before `stop`; None if a file is not where `boundary` says."""
        count = 0
        while first < stop and (holder := boundary.range_of(first)) is not None:
            if first == holder.first and holder.next <= stop:
                count += holder.rows
            else:
                key = key_of(self._layout, partition, holder.first, holder)
                contents = await self._contents_of(store, key)
                if contents is None:
                    return None
                part = contents.part(key, first, stop)
                count += part.stop - part.skip
            first = holder.next
        if first >= stop:
            return count
        end = await self._rows_before(store, partition, stop, stop - 1)
        begin = await self._rows_before(store, partition, first, first)
        return None if begin is None or end is None else count + end - begin

    async def _rows_before(self, store: Store, partition: str, number: int, holder: int) -> int | None:
        """Rows of the partition before commit `number`, from the totals of commit `holder`: itself or the one before.

        None if that commit does not exist.
        """
        if (partition, number) not in self._rows_before_commit:
            commit = await self._commit(store, partition, holder)
            if commit is None:
                return None
            if len(self._rows_before_commit) >= _CACHED_COUNTS:
                self._rows_before_commit.clear()
            # Totals grow along the chain.
            self._rows_before_commit[partition, holder] = commit.totals.rows - commit.rows
            self._rows_before_commit[partition, holder + 1] = commit.totals.rows
        return self._rows_before_commit[partition, number]

    async def seek(self, store: Store, partition: str, files: Sequence[DataFile], sequence: int) -> int:
        boundary = await self._boundary(store, partition)
        if files and await self._was_reset(store, partition, files[-1]):
            return 0  # sequences do not grow from file to file

        async def last(number: int) -> int | None:
            """The last sequence of the file with commit `number`."""
            if (holder := boundary.range_of(number)) is not None:
                return holder.sequence
            commit = await self._commit(store, partition, number)
            return None if commit is None else commit.next.sequence

        low, high = 0, len(files)
        while low < high:
            middle = (low + high) // 2
            upto = await last(files[middle].number)
            if upto is not None and upto < sequence:
                low = middle + 1
            else:
                high = middle
        return low

    async def _was_reset(self, store: Store, partition: str, newest: DataFile) -> bool:
        """Whether a reset came before the end of this file."""
        if not newest.tag:  # compacted
            contents = await self._contents_of(store, newest.key)
            return contents is None or contents.totals.resets > 0
        commit = await self._commit(store, partition, newest.number)
        return commit is None or commit.totals.resets > 0

    async def split_compacted(
        self, store: Store, files: Sequence[DataFile], most_files: int, most_rows: int
    ) -> Sequence[DataFile]:
        parts: list[DataFile] = []
        rows = 0
        for index, file in enumerate(files):
            contents = None
            if not file.tag and len(parts) < most_files and rows < most_rows:
                contents = await self._contents_of(store, file.key)
            if contents is None:  # an original, followed by originals only; or just deleted
                return [*parts, *files[index:]]
            share = file.size // len(contents.rows)
            for number in range(file.number, file.next):
                time = min(file.time, float(contents.times[number - contents.first]))
                parts.append(DataFile(number, number + 1, file.key, share, time))
            rows += contents.rows_before(file.next) - contents.rows_before(file.number)
        return parts

    async def _contents_of(self, store: Store, key: str) -> CompactedCommits | None:
        """The contents of a compacted file; None if it was deleted."""
        if key not in self._contents:
            footer = await read_footer(store, key)
            if footer is None:
                return None
            if len(self._contents) >= _CACHED_CONTENTS:
                self._contents.clear()
            self._contents[key] = CompactedCommits.from_metadata(key, footer.metadata)
        return self._contents[key]

    async def boundaries(self, store: Store) -> Mapping[str, Boundary]:
        """The boundaries that the last listing used."""
        known = self._output_files.known
        return await self._output_files.look(store) if known is None else known

    async def _boundary(self, store: Store, partition: str) -> Boundary:
        return (await self.boundaries(store)).get(partition, NOTHING_TRIMMED)

    async def _commit(self, store: Store, partition: str, number: int) -> Commit | None:
        return await OutputChain(store, self._layout, partition).read(number)

    def decode(
        self, partition: str, number: int, stop: int, key: str, body: bytes, columns: Sequence[str]
    ) -> tuple[Iterator[FileRows], int]:
        try:
            file = open_parquet(body, dictionaries=True)
            stored = [name for name in file.schema_arrow.names if name in columns or name == SEQUENCE.name]
        except (pa.ArrowException, OSError) as error:
            raise CorruptObject.unreadable(key, error) from None
        part = rows_of_commits(key, footer_from(key, file.metadata), number, stop)
        return self._rows(partition, key, file, part, stored, with_partition=PARTITION.name in columns), part.next

    def _rows(
        self,
        partition: str,
        key: str,
        file: pq.ParquetFile,
        part: RowRange,
        columns: Sequence[str],
        *,
        with_partition: bool,
    ) -> Iterator[FileRows]:
        try:
            for batch in batches_of(file, part.skip, part.stop, _BATCH_ROWS, columns):
                found = dict(zip(batch.schema.names, map(_plain, batch.columns), strict=True))
                if with_partition:
                    found[PARTITION.name] = repeat_string(partition, batch.num_rows)
                yield FileRows(found, found[SEQUENCE.name])
        except (pa.ArrowException, OSError, KeyError) as error:
            raise CorruptObject.unreadable(key, error) from None


async def check_processor(store: Store, layout: ProcessorLayout) -> None:
    """Raise UsageError if there is no such processor."""
    if (problem := await missing_processor(store, layout.processor)) is not None:
        raise UsageError(problem)


async def declared_schema(store: Store, layout: ProcessorLayout) -> pa.Schema:
    """The columns that the handler declares."""
    declared = await read_schema(store, layout)
    if declared is None:
        raise CorruptObject(layout.schema, "is missing; every processor writes it as it starts", store.url)
    return declared


def _plain(column: pa.Array) -> pa.Array:
    """Spark does not accept dictionary columns."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
