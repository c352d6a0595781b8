"""What the hosts of a simulated cluster read, as those see it who know all of it: the checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from actorproc.config.settings import Settings
from actorproc.sources.protocol import Source
from actorproc.testing.simulation.faults import FaultyBackend
from actorproc.testing.simulation.process import Process


class KnownStream(ABC):
    """A stream whose every record is known. `injected`: what was done to it, by kind."""

    injected: Counter[str]

    @abstractmethod
    def names(self) -> Sequence[str]:
        """Of the partitions."""

    @abstractmethod
    def records(self, after: int, upto: int, partition: str) -> Iterable[tuple[int, bytes]]:
        """(sequence, value) of the records beyond sequence `after`, up to sequence `upto`."""

    @abstractmethod
    def last(self, partition: str) -> int:
        """Sequence of the newest record; -1 if there is none."""

    @abstractmethod
    def read_by(self, process: Process, settings: Settings) -> Source:
        """The source that this process reads."""

    def join(self, store: FaultyBackend, broken: Callable[[str], None]) -> None:
        """Become the stream of a cluster with this store. `broken` is to be told what does not hold."""

    def written(self, key: str, body: bytes, existed: bool) -> None:
        """The store has taken a write that is none of the processor's."""
