"""An in-memory source for tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from datetime import UTC, datetime

import anyio

from actorproc.records import Batch, Headers
from actorproc.sources.protocol import Chunk, End, Source, Start

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
        self._news = anyio.Event()
        self._page, self._step = page, step
        for partition in range(partitions):
            self.add_partition(str(partition))

    def add_partition(self, partition: str) -> None:
        """Add an empty partition."""
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
        self._news.set()
        self._news = anyio.Event()

    async def partitions(self) -> Sequence[str]:
        return list(self._values)

    async def start(self, partition: str, at: Start) -> str:
        if at == "earliest":
            return "0"
        times = self._times[partition]
        if at == "latest":
            return str(len(times))
        return str(next((i for i, time in enumerate(times) if time is not None and time >= at), len(times)))

    async def end(self, partition: str) -> End:
        count = len(self._values[partition])
        return End(str(count), (count - 1) * self._step if count else None)

    def sequence_before(self, partition: str, position: str) -> int | None:
        return max(-1, (int(position) - 1) * self._step)

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        values, keys, times = self._values[partition], self._keys[partition], self._times[partition]
        headers, at = self._headers[partition], int(position)
        while True:
            news, stop = self._news, min(len(values), at + self._page)
            sequences = range(at * self._step, stop * self._step, self._step)
            part = slice(at, stop)
            batch = Batch.of(
                partition, values[part], sequences, keys=keys[part], headers=headers[part], timestamps=times[part]
            )
            yield Chunk(batch, str(stop))
            if at == stop:
                await news.wait()
            at = stop
