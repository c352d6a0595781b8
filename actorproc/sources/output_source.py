"""`OutputSource`: reads the committed output of another processor."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.errors import CorruptObject, SourceError, UsageError, located
from actorproc.group.membership import read_group
from actorproc.output.compacted_file import batches_of
from actorproc.output.follower import ChainFollower, ChainPosition, CommittedFile
from actorproc.output.row_reader import partitions_with_state
from actorproc.output.schema_document import read_schema
from actorproc.output.source_identity import dataset_identity
from actorproc.records import NO_COST, RECORD_SCHEMA, SEQUENCE, Batch, ReadCost
from actorproc.rows.json_values import rows_to_json
from actorproc.runtime.budget import ReadBudget
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger
from actorproc.sources.output_news import OutputNews
from actorproc.sources.protocol import Chunk, End, Start, first_time, parse_start
from actorproc.sources.stored import StoredSource
from actorproc.storage.locations import missing_processor
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.parquet import open_parquet
from actorproc.storage.store import Store
from actorproc.stores import OUTPUT_SCHEME

logger = get_logger(__name__)

HEADER = "actorproc-sequence"
"""Header of each record: the sequence of the upstream record that the row came from."""

_IDLE_POLLS_MAX = 15  # the pause between polls of an idle partition grows to this many poll intervals
_IDLE_FACTOR = 1.5
_CHUNK_ROWS = 10_000


class OutputSource(StoredSource):
    """Reads the committed output of another processor: a record for each row, in the row's partition.

    A position is `<number>+<rows>`: the number of the commit to read next, and the rows of the partition that were
    read. The sequence of a record is the number of rows before it in the partition; a trim does not change it.

    Args:
        container: URL or folder of the other processor's container, or an opened store.
        name: of the other processor.

    Raises:
        UsageError: `container` is not a URL, a folder or a store, or `name` is not usable.
    """

    def __init__(
        self,
        container: str | os.PathLike[str] | Store,
        name: str,
        *,
        settings: Settings | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._layout = ProcessorLayout(name)
        super().__init__(
            "container", container, "the URL or folder of a container",
            readers=self._layout.readers, settings=settings, clock=clock,
        )  # fmt: skip
        self.url = f"{OUTPUT_SCHEME}{self._store.url}/{name}"
        self._news = OutputNews(self._store, self._layout, self._settings, clock)

    async def close(self) -> None:
        await self._news.close()
        await super().close()

    @classmethod
    def of_url(cls, url: str, *, settings: Settings | None = None, clock: Clock = SYSTEM) -> OutputSource:
        """The output at a URL such as `actorproc+file://state/Delays`.

        Raises:
            UsageError: the URL does not name a container and a processor.
        """
        container, slash, name = url.removeprefix(OUTPUT_SCHEME).rstrip("/").rpartition("/")
        if not slash or container.endswith(("/", ":")):
            raise UsageError(
                f"source {url!r}: {OUTPUT_SCHEME}CONTAINER/PROCESSOR, such as {OUTPUT_SCHEME}file://state/Delays or "
                f"{OUTPUT_SCHEME}s3://bucket/state/Delays"
            )
        return cls(container, name, settings=settings, clock=clock)

    async def _found(self) -> str | None:
        if await read_schema(self._store, self._layout) is None:
            missing = await missing_processor(self._store, self._layout.processor)
            raise UsageError(missing or f"{self.url} has no schema yet: start that processor first")
        return await dataset_identity(self._store, self._layout)

    async def partitions(self) -> Sequence[str]:
        with located(self._store.url):
            group = await read_group(self._store, self._layout)
            return sorted({*await partitions_with_state(self._store, self._layout), *(group.leases if group else ())})

    async def start(self, partition: str, at: Start) -> str:
        """See `Source.start`. A time is compared with commit times, which come from the hosts' clocks."""
        at = parse_start(at)
        with located(self._store.url):
            follower = self._follower(partition)
            if isinstance(at, datetime):
                return _position(await follower.at(at.timestamp()))
            return _position(await (follower.first() if at == "earliest" else follower.end()))

    async def end(self, partition: str) -> End:
        with located(self._store.url):
            end = await self._follower(partition).end()
        return End(_position(end), end.rows - 1 if end.rows else None)

    def _number_at(self, partition: str, position: str) -> int:
        return _parse_position(partition, position).number

    def sequence_before(self, partition: str, position: str) -> int:
        """See `Source.sequence_before`. Raises SourceError if `position` is not a position of an output."""
        return _parse_position(partition, position).rows - 1

    async def time_at(self, partition: str, position: str) -> datetime | None:
        """Time of the commit with the first row from `position` on. Reads one file of the output."""
        return await first_time(self, partition, position, self._settings.store_patience)

    async def read_within(self, partition: str, position: str, budget: ReadBudget) -> AsyncGenerator[Chunk, None]:
        """See `Source.read_within`. The bytes of a file are reserved before it is fetched.

        Raises:
            CorruptObject: a file is not as it was committed.
            SourceError: output at `position` was trimmed or deleted.
        """
        follower = self._follower(partition)
        reached = _parse_position(partition, position)
        pause, told = self._settings.poll_interval, True
        with located(self._store.url):
            while True:
                file = await follower.file(reached.number, budget.reserve)
                if file is None:
                    budget.resize(0)
                    yield Chunk(Batch.empty(partition), _position(reached))
                    told = await self._news.wait(partition, reached.number, self._clock.jitter(pause))
                    pause = min(pause * _IDLE_FACTOR, _IDLE_POLLS_MAX * self._settings.poll_interval)
                    continue
                if not file.before <= reached.rows <= file.end:
                    raise SourceError(
                        f"partition {partition} of {self.url} was replaced: {reached.rows} rows of it were read, but "
                        f"{file.key} has its rows {file.before} to {file.end}. If it was deleted and created again, "
                        "start under another processor name"
                    )
                pause = self._settings.poll_interval
                if not told:
                    self._news.missed()
                told = True
                batches, size = _batches(partition, file, reached.rows - file.before), len(file.body)
                cost = ReadCost(bytes=size, requests=1)
                number, reached, oldest = reached.number, ChainPosition(file.next, file.end), file.oldest
                del file
                budget.resize(size)
                while (batch := await self._clock.run_in_thread(next, batches, None, background=True)) is not None:
                    done = batch.last + 1
                    budget.resize(size + batch.nbytes)
                    position = _position(reached if done == reached.rows else ChainPosition(number, done))
                    yield Chunk(batch, position, cost, oldest=oldest)
                    cost = NO_COST
                del batch, batches

    def _follower(self, partition: str) -> ChainFollower:
        return ChainFollower(self._store, self._layout, partition, self._lowest.get(partition, 0))


def _batches(partition: str, file: CommittedFile, skip: int) -> Iterator[Batch]:
    """The rows of a file after the first `skip`. Each step is CPU-heavy: run it outside the event loop."""
    skip = max(0, skip)
    times = np.repeat(np.round(file.times * 1e6).astype(np.int64), file.counts)
    try:
        opened = open_parquet(file.body)
        for rows in batches_of(opened, skip, len(times), _CHUNK_ROWS, body=file.body):
            stop = skip + rows.num_rows
            sequences = np.arange(file.before + skip, file.before + stop, dtype=np.int64)
            yield Batch(partition, _records(rows, times[skip:stop]), pa.array(sequences))
            skip = stop
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:  # the last two: invalid text
        raise CorruptObject.unreadable(file.key, error) from None


def _records(rows: pa.RecordBatch, times: np.ndarray) -> pa.RecordBatch:
    """Rows as records. `times`: of their commits, in microseconds since 1970."""
    count = rows.num_rows
    upstream = rows.column(SEQUENCE.name).cast(pa.string()).cast(pa.binary())
    kind = RECORD_SCHEMA.field("headers").type
    header = pa.StructArray.from_arrays([pa.repeat(HEADER, count), upstream], fields=list(kind.value_type))
    columns = [
        pa.nulls(count, pa.binary()),
        rows_to_json(rows.drop_columns([SEQUENCE.name])),
        pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), header, type=kind),
        pa.array(times, RECORD_SCHEMA.field("timestamp").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def _position(reached: ChainPosition) -> str:
    return f"{reached.number}+{reached.rows}"


def _parse_position(partition: str, position: str) -> ChainPosition:
    number, _, rows = position.partition("+")
    try:
        return ChainPosition(int(number), int(rows))
    except ValueError:
        raise SourceError(
            f"{position!r} is not a position in partition {partition} of an output: was the checkpoint made with "
            "another source?"
        ) from None
