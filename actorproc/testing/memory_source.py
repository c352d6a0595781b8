"""An in-memory source for tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from datetime import UTC, datetime

import anyio

from actorproc.errors import PartitionGone
from actorproc.records import Batch, Headers
from actorproc.sources.protocol import Chunk, End, Partition, Source, Start

_DAY = datetime(2026, 1, 1, tzinfo=UTC)


class MemorySource(Source):
    """Partitions in memory. Positions are indices; sequences are `step` apart, since they need not be dense.

    Args:
        partitions: their number; they are named "0", "1", ...
        page: records in one chunk.
    """

    def __init__(self, partitions: int = 1, *, page: int = 1000, step: int = 1) -> None:
        self._values: dict[str, list[bytes | None]] = {}
        self._keys: dict[str, list[bytes | None]] = {}
        self._headers: dict[str, list[Headers]] = {}
        self._times: dict[str, list[datetime | None]] = {}
        self._change = anyio.Event()
        self._page, self._step = page, step
        self._parents: dict[str, tuple[str, ...]] = {}
        self._ended, self._unlisted, self._gone = set[str](), set[str](), set[str]()
        for partition in range(partitions):
            self.add_partition(str(partition))

    def add_partition(self, partition: str, parents: Sequence[str] = ()) -> None:
        """Add an empty partition, which follows its parents. These end."""
        self._parents[partition] = tuple(parents)
        self._ended |= set(parents)
        self._wake()
        self._values[partition], self._keys[partition] = [], []
        self._headers[partition], self._times[partition] = [], []

    def append(
        self,
        partition: str,
        values: Sequence[bytes | None],
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        timestamp: datetime | None = _DAY,
    ) -> None:
        """Add records to the end of a partition and wake its readers."""
        self._values[partition] += values
        self._keys[partition] += [key] * len(values)
        self._headers[partition] += [tuple(headers)] * len(values)
        self._times[partition] += [timestamp] * len(values)
        self._wake()

    def unlist(self, partition: str) -> None:
        """Do not list the partition any more. It can still be read."""
        self._unlisted.add(partition)

    def list_again(self, partition: str) -> None:
        """Undo `unlist` and `forget`."""
        self._unlisted.discard(partition)
        self._gone.discard(partition)

    def forget(self, partition: str) -> None:
        """Forget the partition: it is not listed, and cannot be read."""
        self._unlisted.add(partition)
        self._gone.add(partition)
        self._wake()

    def _wake(self) -> None:
        self._change.set()
        self._change = anyio.Event()

    def latest_time(self) -> float | None:
        """The greatest timestamp of all records, in seconds since 1970; None if there is none."""
        times = [time.timestamp() for some in self._times.values() for time in some if time is not None]
        return max(times, default=None)

    def _check_there(self, partition: str) -> None:
        if partition in self._gone:
            raise PartitionGone(f"partition {partition} is gone")

    async def partitions(self) -> Sequence[str | Partition]:
        listed = {name: self._listed_parents(name) for name in self._parents if name not in self._unlisted}
        return [Partition(name, parents) if parents else name for name, parents in listed.items()]

    def _listed_parents(self, partition: str) -> tuple[str, ...]:
        """Its parents, and the parents of those that are not listed any more."""
        found = dict.fromkeys(self._parents[partition])
        for parent in self._parents[partition]:
            if parent in self._unlisted:
                found |= dict.fromkeys(self._listed_parents(parent))
        return tuple(found)

    async def start(self, partition: str, at: Start) -> str:
        self._check_there(partition)
        if at == "earliest":
            return "0"
        times = self._times[partition]
        if at == "latest":
            return str(len(times))
        return str(next((i for i, time in enumerate(times) if time is not None and time >= at), len(times)))

    def sequence_of(self, index: int) -> int:
        """Sequence of the record with this index in its partition."""
        return index * self._step

    async def end(self, partition: str) -> End:
        self._check_there(partition)
        count = len(self._values[partition])
        return End(str(count), self.sequence_of(count - 1) if count else None)

    def sequence_before(self, partition: str, position: str) -> int | None:
        index = int(position)
        return self.sequence_of(index - 1) if index else -1

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        values, keys, times = self._values[partition], self._keys[partition], self._times[partition]
        headers, at = self._headers[partition], int(position)
        while True:
            self._check_there(partition)
            change, stop = self._change, min(len(values), at + self._page)
            sequences = [self.sequence_of(index) for index in range(at, stop)]
            part = slice(at, stop)
            batch = Batch.of(
                partition, values[part], sequences, keys=keys[part], headers=headers[part], timestamps=times[part]
            )
            ended = partition in self._ended and stop == len(values)
            yield Chunk(batch, str(stop), ended=ended)
            if ended:
                return
            if at == stop:
                await change.wait()
            at = stop
