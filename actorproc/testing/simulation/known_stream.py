"""Interface of the streams that a simulated cluster can read and check."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from actorproc.config.settings import Settings
from actorproc.sources.protocol import Source
from actorproc.testing.simulation.faults import FaultyBackend
from actorproc.testing.simulation.process import Process


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

    def join(self, store: FaultyBackend, broken: Callable[[str], None]) -> None:
        """Connect to the store of a cluster. Call `broken` with each invariant that does not hold."""

    def written(self, key: str, body: bytes, existed: bool) -> None:
        """The store applied a write that is not the processor's."""
