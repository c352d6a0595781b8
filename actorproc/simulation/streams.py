"""Streams that a simulated cluster can read and check: the interface, and one in memory that is as difficult as the
protocol allows, with coarse positions, repeats, errors and delays.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from random import Random

from actorproc.config.settings import Settings
from actorproc.errors import SourceError
from actorproc.records import Batch
from actorproc.runtime.clock import SYSTEM
from actorproc.simulation.faults import FaultyBackend
from actorproc.simulation.process import Process
from actorproc.sources.protocol import Chunk, Source
from actorproc.testing.memory_source import MemorySource


class KnownStream(ABC):
    """A stream whose records are all known. `injected` counts its faults by kind."""

    injected: Counter[str]

    @abstractmethod
    def names(self) -> Sequence[str]:
        """Names of the partitions."""

    @abstractmethod
    def records(self, after: int, upto: int, partition: str) -> Iterable[tuple[int, bytes]]:
        """(sequence, value) of the records after sequence `after`, up to and including sequence `upto`."""

    @abstractmethod
    def last(self, partition: str) -> int:
        """Sequence of the newest record; -1 if there is none."""

    @abstractmethod
    def read_by(self, process: Process, settings: Settings) -> Source:
        """The source for this process."""

    def parents(self, partition: str) -> Sequence[str]:
        """The partitions that it follows."""
        return ()

    def time_of(self, partition: str, sequence: int) -> float | None:
        """Timestamp of a record, in seconds since 1970. None: unknown."""
        return None

    def stream_time(self, partition: str, sequence: int) -> float | None:
        """Stream time once the record of this sequence is processed; infinity at the end of a partition that ends.
        None: unknown.
        """
        return None

    def is_listed(self, partition: str) -> bool:
        """Whether the source names it. One that is not listed any more may still be readable."""
        return True

    def is_gone(self, partition: str) -> bool:
        """Whether it cannot be read any more."""
        return False

    def join(self, store: FaultyBackend, broken: Callable[[str], None], committed_to: Callable[[str], int]) -> None:
        """Connect to a cluster.

        Args:
            store: the store of the cluster.
            broken: to call with each invariant that does not hold.
            committed_to: returns the sequence up to which a partition is committed.
        """

    def unsettled(self, ends: Mapping[str, int]) -> str | None:
        """Why the stream is not done although everything up to these sequences is committed; None if it is."""
        return None

    def written(self, key: str, body: bytes, existed: bool) -> None:
        """The store applied a write that is not the processor's."""


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

    def open_names(self) -> Sequence[str]:
        """Names of the partitions that have not ended."""
        return [name for name in self._values if name not in self._ended]

    def parents(self, partition: str) -> Sequence[str]:
        return self._parents[partition]

    def is_listed(self, partition: str) -> bool:
        return partition not in self._unlisted

    def is_gone(self, partition: str) -> bool:
        return partition in self._gone

    def time_of(self, partition: str, sequence: int) -> float | None:
        time = self._times[partition][sequence // self._step]
        return None if time is None else time.timestamp()

    def stream_time(self, partition: str, sequence: int) -> float | None:
        if partition in self._gone or (partition in self._ended and sequence >= self.last(partition)):
            return math.inf
        times = self._times[partition][: sequence // self._step + 1]
        return max((time.timestamp() for time in times if time is not None), default=None)

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
            self._check_there(partition)
            if self._random.random() < self.failing:
                self.injected["source_error"] += 1
                raise SourceError(f"partition {partition} cannot be read from {position}")
            change = self._change
            stop = min(len(values), page + self._page)
            sequences = range(at * self._step, stop * self._step, self._step)
            batch = Batch.of(partition, values[at:stop], sequences, keys=keys[at:stop], timestamps=times[at:stop])
            if stop == page + self._page:
                page = stop
            ended = partition in self._ended and stop == len(values)
            yield Chunk(batch, str(page), ended=ended)
            if ended:
                return
            if at == stop:
                await change.wait()
            at = stop
