"""A processor's output as a dataset for Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from actorproc.errors import CorruptObject, UsageError
from actorproc.group.locations import missing_processor
from actorproc.output.chain import Commit, OutputChain
from actorproc.output.compacted_file import CompactedCommits, RowRange, batches_of, part_of
from actorproc.output.output_files import OutputFiles
from actorproc.output.row_reader import partitions_with_state
from actorproc.output.schema import read_schema
from actorproc.output.source_identity import dataset_identity
from actorproc.records import SEQUENCE
from actorproc.retention.boundary import NOTHING_TRIMMED, Boundary
from actorproc.retention.readers import lowest_numbers
from actorproc.spark.dataset import Dataset, FileRows, repeat_string
from actorproc.storage.listing import DataFile
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.parquet import footer_from, open_parquet, read_footer
from actorproc.storage.store import Store

PARTITION = pa.field("_partition", pa.string(), nullable=False)

_ROWS = 50_000  # in a batch, at most
_REMEMBERED = 256  # compacted files, what is in them
_REMEMBERED_ROWS = 10_000  # commits, how many rows are before them: a trigger asks for some of each partition


class Output(Dataset):
    """Committed rows: the handler's columns, `_partition` and `_sequence`. Numbers are commits, without gaps."""

    kind = "output"

    def __init__(self, name: str) -> None:
        self.path = name
        self._layout = ProcessorLayout(name)
        self._where = OutputFiles(self._layout)
        self._contents: dict[str, CompactedCommits] = {}
        self._before: dict[tuple[str, int], int] = {}
        """(partition, number) -> rows of the partition before that commit."""

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_contents": {}, "_before": {}}  # tasks need not know what the driver remembers

    async def identity(self, store: Store) -> str:
        return await dataset_identity(store, self._layout) or ""

    async def schema(self, store: Store) -> pa.Schema:
        await check_processor(store, self._layout)
        declared = await read_schema(store, self._layout)
        if declared is None:
            raise CorruptObject(self._layout.schema, "is missing; every processor writes it as it starts", store.url)
        return pa.schema([*declared, PARTITION, SEQUENCE])

    async def partitions(self, store: Store) -> Sequence[str]:
        return await partitions_with_state(store, self._layout)

    async def lowest(self, store: Store, partitions: Sequence[str]) -> Mapping[str, int]:
        return await lowest_numbers(store, self._layout.readers, self._where.boundaries)

    def key(self, partition: str, number: int) -> str:
        return self._layout.output_file(partition, number)

    async def files(
        self, store: Store, starts: Mapping[str, int], limit: int | None = None
    ) -> Mapping[str, Sequence[DataFile]]:
        return await self._where.files(store, starts, limit)

    async def fetch(self, store: Store, partition: str, number: int) -> tuple[str, bytes] | None:
        return await self._where.fetch(store, partition, number)

    async def check(self, store: Store, first: Mapping[str, Sequence[DataFile]], starts: Mapping[str, int]) -> None:
        for partition, files in first.items():
            start, lowest = starts.get(partition, 0), (await self._boundary(store, partition)).lowest
            if start < lowest:
                raise self.lost(store, partition, start, lowest, f"output below {lowest} was trimmed")
            if files and files[0].number > start and await self.fetch(store, partition, start) is None:
                raise self.lost(store, partition, start, files[0].number, "the files before it were deleted by hand")

    async def rows(self, store: Store, partition: str, first: int, stop: int) -> int:
        boundary = await self._boundary(store, partition)
        while (count := await self._count(store, partition, boundary, first, stop)) is None:
            before, boundary = boundary, (await self._where.look(store)).get(partition, NOTHING_TRIMMED)
            if boundary == before:
                raise self.lost(store, partition, first, None, "the files were deleted meanwhile")
        return count

    async def _count(self, store: Store, partition: str, boundary: Boundary, first: int, stop: int) -> int | None:
        """Rows of the commits from `first` on and before `stop`; None: they are not where `boundary` leads to."""
        count = 0
        while first < stop and (holder := boundary.range_of(first)) is not None:
            if first == holder.first and holder.next <= stop:
                count += holder.rows
            else:
                key = self._layout.compacted_file(partition, holder.first, holder.put_id)
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
        """Rows of the partition before commit `number`, as the commit `holder` tells: itself, or the one before it. None: it
        is not there."""
        if (partition, number) not in self._before:
            commit = await self._commit(store, partition, holder)
            if commit is None:
                return None
            if len(self._before) >= _REMEMBERED_ROWS:
                self._before.clear()
            # Totals count up along the chain.
            self._before[partition, holder] = commit.totals.rows - commit.rows
            self._before[partition, holder + 1] = commit.totals.rows
        return self._before[partition, number]

    async def seek(self, store: Store, partition: str, files: Sequence[DataFile], sequence: int) -> int:
        boundary = await self._boundary(store, partition)

        async def last(number: int) -> int | None:
            """Sequence up to which the file with commit `number` goes."""
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

    async def split_compacted(
        self, store: Store, files: Sequence[DataFile], most_files: int, most_rows: int
    ) -> Sequence[DataFile]:
        parts: list[DataFile] = []
        rows = 0
        for index, file in enumerate(files):
            contents = None
            if not file.tag and len(parts) < most_files and rows < most_rows:
                contents = await self._contents_of(store, file.key)
            if contents is None:  # an original: all after it are; or deleted a moment ago
                return [*parts, *files[index:]]
            share = file.size // len(contents.rows)
            for number in range(file.number, file.next):
                time = min(file.time, float(contents.times[number - contents.first]))
                parts.append(DataFile(number, number + 1, file.key, share, time))
            rows += contents.rows_before(file.next) - contents.rows_before(file.number)
        return parts

    async def _contents_of(self, store: Store, key: str) -> CompactedCommits | None:
        """What is in a compacted file; None: it is not there any more."""
        if key not in self._contents:
            footer = await read_footer(store, key)
            if footer is None:
                return None
            if len(self._contents) >= _REMEMBERED:
                self._contents.clear()
            self._contents[key] = CompactedCommits.from_metadata(key, footer.metadata)
        return self._contents[key]

    async def _boundary(self, store: Store, partition: str) -> Boundary:
        """As the last listing went by it."""
        known = self._where.known
        return (await self._where.look(store) if known is None else known).get(partition, NOTHING_TRIMMED)

    async def _commit(self, store: Store, partition: str, number: int) -> Commit | None:
        return await OutputChain(store, self._layout, partition).read(number)

    def decode(
        self, partition: str, number: int, stop: int, key: str, body: bytes, columns: Sequence[str]
    ) -> tuple[Iterator[FileRows], int]:
        try:
            file = open_parquet(body, dictionaries=True)
            there = [name for name in file.schema_arrow.names if name in columns or name == SEQUENCE.name]
        except (pa.ArrowException, OSError) as error:
            raise _damaged(key, error) from None
        part = part_of(key, footer_from(key, file.metadata), number, stop)
        return self._rows(partition, key, file, part, there, with_partition=PARTITION.name in columns), part.next

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
            for batch in batches_of(file, part.skip, part.stop, _ROWS, columns):
                found = dict(zip(batch.schema.names, map(_plain, batch.columns), strict=True))
                if with_partition:
                    found[PARTITION.name] = repeat_string(partition, batch.num_rows)
                yield FileRows(found, found[SEQUENCE.name])
        except (pa.ArrowException, OSError, KeyError) as error:
            raise _damaged(key, error) from None


async def check_processor(store: Store, layout: ProcessorLayout) -> None:
    """Check that there is such a processor.

    Raises:
        UsageError: there is no such processor.
    """
    if (problem := await missing_processor(store, layout.processor)) is not None:
        raise UsageError(problem)


def _plain(column: pa.Array) -> pa.Array:
    """Spark takes no dictionaries."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _damaged(key: str, error: Exception) -> CorruptObject:
    return CorruptObject.unreadable(key, error)


def check_column_names(processor: str, columns: Sequence[str], schema: pa.Schema) -> None:
    """Check that the output has these columns. `schema`: Arrow's, or Spark's.

    Raises:
        UsageError: names those that are not there, and those that are.
    """
    if unknown := [column for column in columns if column not in schema.names]:
        raise UsageError(f"{processor} has no column {', '.join(unknown)}; there are: {', '.join(schema.names)}")
