"""A processor's output as a dataset for Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from actorproc.errors import CorruptObject, UsageError
from actorproc.keeping.registry import lowest_numbers
from actorproc.layout import ProcessorLayout
from actorproc.output.boundary import NOTHING_TRIMMED, Boundaries
from actorproc.output.chain import Commit, OutputChain
from actorproc.output.dataset import partitions_with_state
from actorproc.output.origin import dataset_identity
from actorproc.output.schema import read_schema
from actorproc.records import SEQUENCE
from actorproc.spark.dataset import Batch, Dataset, Description, File, list_files
from actorproc.store import Store

PARTITION = pa.field("_partition", pa.string())

_ROWS = 50_000  # in a batch, at most


class Output(Dataset):
    """Committed rows: the handler's columns, `_partition` and `_sequence`. Numbers are commits, without gaps."""

    kind = "output"

    def __init__(self, name: str) -> None:
        self.path = name
        self._layout = ProcessorLayout(name)
        self._boundaries = Boundaries(self._layout.boundaries)

    async def describe(self, store: Store) -> Description:
        from actorproc.status import missing_processor  # half a second, which tasks need not spend

        if (problem := await missing_processor(store, self.path)) is not None:
            raise UsageError(problem)
        return Description(await dataset_identity(store, self._layout) or "", await self._schema(store))

    async def _schema(self, store: Store) -> pa.Schema:
        declared = await read_schema(store, self._layout)
        if declared is None:
            raise CorruptObject(
                self._layout.schema, f"is missing from {store.url}; every processor writes it as it starts"
            )
        return pa.schema([_nullable(field) for field in (*declared, PARTITION, SEQUENCE)])

    async def partitions(self, store: Store) -> Sequence[str]:
        return await partitions_with_state(store, self._layout)

    async def lowest(self, store: Store, partitions: Sequence[str]) -> Mapping[str, int]:
        return await lowest_numbers(store, self._layout.readers, self._boundaries)

    def key(self, partition: str, number: int) -> str:
        return self._layout.output_file(partition, number)

    async def files(self, store: Store, partition: str, first: int, limit: int | None = None) -> list[File]:
        return await list_files(store, self._layout.output_dir(partition), first, limit, ".parquet")

    async def check(self, store: Store, first: Mapping[str, Sequence[File]], starts: Mapping[str, int]) -> None:
        boundaries = await self._boundaries.read(store)
        for partition, files in first.items():
            start, boundary = starts.get(partition, 0), boundaries.get(partition, NOTHING_TRIMMED).lowest
            if start < boundary:
                raise self.lost(store, partition, start, boundary, f"output below {boundary} was trimmed")
            if files and files[0].number > start and await self._commit(store, partition, start) is None:
                raise self.lost(store, partition, start, files[0].number, "the files before it were deleted by hand")

    async def after(self, store: Store, partition: str, number: int) -> int:
        return number + 1

    async def rows(self, store: Store, partition: str, first: int, stop: int) -> int:
        if stop <= first:
            return 0
        begin, end = await self._commit(store, partition, first), await self._commit(store, partition, stop - 1)
        if begin is None or end is None:
            raise self.lost(store, partition, first, None, "the files were deleted meanwhile")
        return end.totals.rows - begin.totals.rows + begin.rows  # totals count up along the chain

    async def seek(self, store: Store, partition: str, files: Sequence[File], sequence: int) -> int:
        low, high = 0, len(files)
        while low < high:
            middle = (low + high) // 2
            commit = await self._commit(store, partition, files[middle].number)
            if commit is not None and commit.next.sequence < sequence:
                low = middle + 1
            else:
                high = middle
        return low

    async def _commit(self, store: Store, partition: str, number: int) -> Commit | None:
        return await OutputChain(store, self._layout, partition).read(number)

    def decode(self, partition: str, number: int, body: bytes, columns: Sequence[str]) -> tuple[Iterator[Batch], int]:
        return self._rows(partition, number, body, columns), number + 1

    def _rows(self, partition: str, number: int, body: bytes, columns: Sequence[str]) -> Iterator[Batch]:
        try:
            file = pq.ParquetFile(pa.BufferReader(body))
            there = [name for name in file.schema_arrow.names if name in columns or name == SEQUENCE.name]
            for batch in file.iter_batches(_ROWS, columns=there, use_threads=False):
                found = dict(zip(batch.schema.names, batch.columns, strict=True))
                if PARTITION.name in columns:
                    found[PARTITION.name] = pa.repeat(partition, batch.num_rows)
                yield Batch(found, found[SEQUENCE.name])
        except (pa.ArrowException, OSError, KeyError) as error:
            raise CorruptObject(self.key(partition, number), f"cannot be read ({error})") from None


def _nullable(field: pa.Field) -> pa.Field:
    """The field, and all in it, nullable: as Spark's own reader of Parquet has it."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(part) for part in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_nullable(kind.key_field).type, _nullable(kind.item_field).type)
    return pa.field(field.name, kind, True, field.metadata)
