"""The built-in log as a dataset for Spark, with the columns of Spark's Kafka source."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from actorproc.log.metadata import open_log
from actorproc.log.positions import first_base, read_footer_at
from actorproc.log.segment import Segment
from actorproc.records import RECORD_SCHEMA
from actorproc.retention.boundary import Boundaries, Boundary
from actorproc.retention.readers import lowest_numbers
from actorproc.runtime.tasks import gather
from actorproc.spark.dataset import FileRows, SparkDataset, repeat_string
from actorproc.storage.listing import DataFile
from actorproc.storage.names import LOG_BOUNDARIES, READERS, log_file
from actorproc.storage.store import Store

_HEADER = pa.struct([pa.field("key", pa.string(), False), ("value", pa.binary())])

LOG_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        pa.field("topic", pa.string(), False),
        pa.field("partition", pa.int32(), False),
        pa.field("offset", pa.int64(), False),
        ("timestamp", RECORD_SCHEMA.field("timestamp").type),
        pa.field("timestampType", pa.int32(), False),
        ("headers", pa.list_(pa.field("element", _HEADER))),
    ]
)
"""`topic` is the last part of the log's URL; `offset` the record's sequence; `timestampType` 0 (CreateTime)."""


class Log(SparkDataset):
    """Records of the built-in log. A file's number is its base sequence; the next file's is that plus its records."""

    kind = "log"

    def __init__(self, url: str) -> None:
        self.path = ""
        self._boundaries = Boundaries(LOG_BOUNDARIES)
        self._topic = url.rstrip("/").rpartition("/")[2]

    async def schema(self, store: Store) -> pa.Schema:
        await open_log(store)
        return LOG_SCHEMA

    async def identity(self, store: Store) -> str:
        return (await open_log(store)).identity

    async def partitions(self, store: Store) -> Sequence[str]:
        return (await open_log(store)).names

    async def lowest(self, store: Store, partitions: Sequence[str]) -> Mapping[str, int]:
        trimmed = await lowest_numbers(store, READERS, self._boundaries)

        async def lowest(partition: str) -> int:
            if partition in trimmed:
                return trimmed[partition]
            if not await first_base(store, partition):
                return 0
            # A listing may miss a file that is created meanwhile. One that starts after a later file was seen does not.
            return await first_base(store, partition) or 0

        return await gather(partitions, lowest)

    def key(self, partition: str, number: int) -> str:
        return log_file(partition, number)

    async def boundaries(self, store: Store) -> Mapping[str, Boundary]:
        return await self._boundaries.read(store)

    async def next_number(self, store: Store, partition: str, file: DataFile) -> int:
        _, following = await read_footer_at(store, partition, file.number)
        return max(file.next, following)  # a seal has no records, and is read once

    async def rows(self, store: Store, partition: str, first: int, stop: int) -> int:
        return stop - first

    async def seek(self, store: Store, partition: str, files: Sequence[DataFile], sequence: int) -> int:
        return max(0, bisect_right(files, sequence, key=lambda file: file.number) - 1)

    def decode(
        self, partition: str, number: int, stop: int, key: str, body: bytes, columns: Sequence[str]
    ) -> tuple[Iterator[FileRows], int]:
        file = Segment(partition, number, body)
        return self._records(partition, file, columns), max(number + 1, file.next_base)

    def _records(self, partition: str, file: Segment, columns: Sequence[str]) -> Iterator[FileRows]:
        stored = [name for name in RECORD_SCHEMA.names if name in columns]
        for found, sequences in file.columns(stored):
            count = len(sequences)
            rows = dict(zip(stored, found, strict=True))
            rows["topic"] = repeat_string(self._topic, count)
            rows["partition"] = pa.array(np.full(count, int(partition), np.int32))
            rows["offset"] = sequences
            rows["timestampType"] = pa.array(np.zeros(count, np.int32))
            yield FileRows(rows, sequences)
