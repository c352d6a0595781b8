"""An in-memory source with all difficulties that the protocol allows: coarse positions, repeats, errors, delays."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from random import Random

from actorproc.config.settings import Settings
from actorproc.errors import SourceError
from actorproc.records import Batch
from actorproc.runtime.clock import SYSTEM
from actorproc.sources.protocol import Chunk, Source
from actorproc.testing.memory_source import MemorySource
from actorproc.testing.simulation.known_stream import KnownStream
from actorproc.testing.simulation.process import Process


class UnsteadySource(MemorySource, KnownStream):
    """Positions point at the start of a page, so a reader that resumes gets the whole page again.

    Args:
        failing: share of reads that raise SourceError, 0 to 1. May be set.
    """

    def __init__(
        self, partitions: int, *, page: int = 50, step: int = 3, failing: float = 0.0, seed: object = 0
    ) -> None:
        super().__init__(partitions, page=page, step=step)
        self.failing = failing
        self.injected: Counter[str] = Counter()
        self._random = Random(f"{seed}/source")  # noqa: S311

    def names(self) -> Sequence[str]:
        return list(self._values)

    def read_by(self, process: Process, settings: Settings) -> Source:
        return self

    def records(self, after: int, upto: int, partition: str) -> Iterable[tuple[int, bytes]]:
        values = self._values[partition]
        for index in range(max(0, after // self._step + 1), min(len(values), upto // self._step + 1)):
            yield index * self._step, values[index] or b""

    def last(self, partition: str) -> int:
        return (len(self._values[partition]) - 1) * self._step if self._values[partition] else -1

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        values, keys, times = self._values[partition], self._keys[partition], self._times[partition]
        page = at = int(position)
        while True:
            await SYSTEM.sleep(self._random.uniform(0, 0.1))
            if self._random.random() < self.failing:
                self.injected["source_error"] += 1
                raise SourceError(f"partition {partition} cannot be read from {position}")
            news = self._news
            stop = min(len(values), page + self._page)
            sequences = range(at * self._step, stop * self._step, self._step)
            batch = Batch.of(partition, values[at:stop], sequences, keys=keys[at:stop], timestamps=times[at:stop])
            if stop == page + self._page:
                page = stop
            yield Chunk(batch, str(page))
            if at == stop:
                await news.wait()
            at = stop
