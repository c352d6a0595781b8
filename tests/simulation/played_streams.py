"""The kinds of streams in a scenario: where their records come from, and their own faults."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import ClassVar
from zlib import crc32

from actorproc.runtime.clock import SYSTEM
from actorproc.simulation.clock import EPOCH
from actorproc.simulation.loop import current_loop, start_outside
from actorproc.simulation.process import Process
from actorproc.simulation.streams import KnownStream, UnsteadySource
from actorproc.storage.names import LOG_HINTS
from tests.simulation.host_faults import FATES, Fault, HostFaults
from tests.simulation.log_stream import LOG_FILES, LogStream
from tests.simulation.queue_stream import QueueStream
from tests.simulation.reference_records import reference_value

PRODUCERS = ("producer-a", "producer-b")

LANDED = 100.0
"""Seconds after the last fault within which every late write is applied."""


class PlayedStream(ABC):
    """A stream with its events in a scenario.

    Attributes:
        label: a short description.
        known: the source that hosts read.
    """

    label: ClassVar[str]
    known: KnownStream
    _hosts: HostFaults

    def join(self, hosts: HostFaults) -> None:
        """Connect to the cluster that reads it."""
        self._hosts = hosts

    @abstractmethod
    async def begin(self) -> None:
        """Records begin to flow."""

    @abstractmethod
    def end(self) -> None:
        """No more records come."""

    async def heal(self) -> None:
        """Finish the acts that faults have interrupted."""

    async def landed(self) -> None:
        """Wait until no record is on its way."""

    @abstractmethod
    def open_names(self) -> Sequence[str]:
        """Partitions that take more records."""

    @abstractmethod
    async def append(self, partition: str, values: list[bytes]) -> None:
        """Append records that are later than all others."""

    @abstractmethod
    def by_weight(self) -> dict[Fault, int]:
        """Its own faults and their relative frequency."""

    def fail_reads(self, share: float) -> None:
        """Let this share of the reads fail, 0 to 1."""

    @property
    def processes(self) -> list[Process]:
        """That run and are no hosts."""
        return []

    @property
    def seen(self) -> Counter[str]:
        """The number of checks, by kind."""
        return Counter()


class FedStream(PlayedStream):
    """Partitions in memory, with records in bursts; some are added. `source`: the source that holds them."""

    source: ClassVar[type[UnsteadySource | QueueStream]]
    known: UnsteadySource | QueueStream

    def __init__(self, partitions: int, random: Random, seed: int) -> None:
        self._random = random
        self._partitions, self._most_partitions = partitions, partitions + 3
        self._flowing = True
        self.known = self.source(partitions, seed=seed)

    async def begin(self) -> None:
        start_outside(self._feed())

    def end(self) -> None:
        self._flowing = False

    def open_names(self) -> Sequence[str]:
        return self.known.open_names()

    async def append(self, partition: str, values: list[bytes]) -> None:
        self._append(partition, values, lag=0)

    def by_weight(self) -> dict[Fault, int]:
        return {self._add_a_partition: 2}

    def fail_reads(self, share: float) -> None:
        self.known.failing = share

    async def _feed(self) -> None:
        """Append records in bursts with quiet periods between them."""
        pick = self._random
        while True:
            quiet = pick.random() < 0.02
            await SYSTEM.sleep(pick.uniform(30, 200) if quiet else pick.uniform(0, 4))
            if not self._flowing:
                return
            partition = pick.choice(list(self.known.open_names()))
            self._append(partition, [reference_value(pick) for _ in range(pick.randint(1, 20))])

    @abstractmethod
    def _append(self, partition: str, values: list[bytes], lag: int = 30) -> None:
        """Append records whose timestamps, if they have any, are up to `lag` seconds behind, and not in order."""

    def _add_a_partition(self) -> None:
        if self._partitions < self._most_partitions:
            self.known.add_partition(str(self._partitions))
            self._partitions += 1
            self._hosts.cluster.events["new_partition"] += 1


class PositionsStream(FedStream):
    """Partitions with positions."""

    label = "partitions with positions"
    source = UnsteadySource
    known: UnsteadySource

    def _append(self, partition: str, values: list[bytes], lag: int = 30) -> None:
        now = EPOCH + current_loop().now
        for value in values:
            behind = crc32(value) % lag if lag else 0
            self.known.append(partition, [value], timestamp=datetime.fromtimestamp(now - behind, UTC))


class SplittingStream(PositionsStream):
    """Partitions split, merge and are forgotten."""

    label = "partitions that split, merge and are forgotten"

    def __init__(self, partitions: int, random: Random, seed: int) -> None:
        super().__init__(partitions, random, seed)
        self._splits = 0

    def by_weight(self) -> dict[Fault, int]:
        return {**super().by_weight(), self._split: 8, self._merge: 4, self._split_at_once: 3}

    def _split(self) -> None:
        """A partition splits in two."""
        if self._has_room():
            self._follow([self._random.choice(self.known.open_names())], 2)

    def _merge(self) -> None:
        """Two partitions become one."""
        if len(names := self.known.open_names()) > 2:
            self._follow(self._random.sample(names, 2), 1)

    def _split_at_once(self) -> None:
        """A partition comes and splits before all hosts have listed it."""
        if self._has_room():
            self._splits += 1
            self.known.add_partition(name := f"s{self._splits}")
            self._append(name, [reference_value(self._random) for _ in range(5)])
            self._hosts.later(0, 70, lambda: self._follow([name], 1))

    def _follow(self, parents: list[str], count: int) -> None:
        """End these partitions; others follow them. Some are not listed any more then, and later forgotten."""
        if not set(parents) <= set(self.known.open_names()) or not self._flowing:
            return
        if not self._hosts.cluster.settings.auto_commit:  # as for the good records at the end
            for parent in parents:
                self._append(parent, [reference_value(self._random, "row")])
        names = [f"{parents[0]}-next"] if count == 1 else [f"{parents[0]}a", f"{parents[0]}b"]
        for name in names:
            self.known.add_partition(name, parents=parents)
        self._hosts.cluster.events["split" if len(parents) == 1 else "merge"] += 1
        for parent in parents:
            lot = self._random.random()
            if lot < 0.6:
                self._hosts.later(0, 100, partial(self.known.unlist, parent))
            if lot < 0.3:
                self._hosts.later(*((0, 20) if lot < 0.15 else (100, 600)), partial(self._forget, parent))

    def _forget(self, partition: str) -> None:
        self.known.forget(partition)
        self._hosts.cluster.events["forgotten"] += 1

    def _has_room(self) -> bool:
        return len(self.known.open_names()) < self._most_partitions


class QueuesStream(FedStream):
    """Queues of a broker."""

    label = "queues of a broker that delivers again what was not acknowledged"
    source = QueueStream
    known: QueueStream

    def by_weight(self) -> dict[Fault, int]:
        own: dict[Fault, int] = {
            self._drop_a_consumer: 12,
            self._drop_in_a_commit: 12,
            self._restart_the_broker: 3,
        }
        return {**super().by_weight(), **own}

    def _append(self, partition: str, values: list[bytes], lag: int = 30) -> None:
        self.known.append(partition, values)

    def _drop_a_consumer(self) -> None:
        self.known.drop_consumer(self._random.choice(list(self.known.names())))

    def _drop_in_a_commit(self) -> None:
        """A host loses its consumers at the moment of its next commit."""
        if process := self._hosts.some():
            process.view.interfere = partial(self._lose_consumers, process)

    def _lose_consumers(self, process: Process, verb: str, key: str) -> None:
        layout = self._hosts.cluster.layout
        if verb.startswith("put") and key.startswith((layout.output, layout.checkpoints)):
            process.view.interfere = None
            self._hosts.later(0, 0.1, partial(self.known.drop_consumers_of, process.host))

    def _restart_the_broker(self) -> None:
        self.known.restart(self._random.uniform(1, 60))


class LoggedStream(PlayedStream):
    """The built-in log, with producers."""

    label = "the built-in log, with producers"
    known: LogStream

    def __init__(self, partitions: int, random: Random, seed: int) -> None:
        self._random = random
        self.known = LogStream(partitions, reference_value, seed=seed)

    def join(self, hosts: HostFaults) -> None:
        super().join(hosts)
        hosts.starters = {name: partial(self.known.start, name) for name in PRODUCERS}

    async def begin(self) -> None:
        await self.known.create()
        for name in PRODUCERS:
            self.known.start(name)

    def end(self) -> None:
        self.known.end()

    async def landed(self) -> None:
        while self.known.processes:
            await self._hosts.cluster.run_for(10)
        await self._hosts.cluster.run_for(LANDED)

    async def heal(self) -> None:
        await self.known.finish_growth()

    def open_names(self) -> Sequence[str]:
        return self.known.open_names()

    async def append(self, partition: str, values: list[bytes]) -> None:
        await self.known.append(partition, values)

    def by_weight(self) -> dict[Fault, int]:
        return {
            self._crash_a_producer: 8,
            self._pause_a_producer: 6,
            self._fail_in_an_append: 16,
            self._cut_heads: 4,
            self._grow: 1,
        }

    @property
    def processes(self) -> list[Process]:
        return self.known.processes

    @property
    def seen(self) -> Counter[str]:
        return self.known.seen

    def _crash_a_producer(self) -> None:
        self._hosts.crash(self.processes)

    def _pause_a_producer(self) -> None:
        self._hosts.pause(self.processes)

    def _fail_in_an_append(self) -> None:
        """The next append of a producer fails, and the producer pauses, crashes or is cut off at that moment."""
        if process := self._hosts.some(self.processes):
            process.view.interfere = partial(self._fail_append, process)

    def _fail_append(self, process: Process, verb: str, key: str) -> str | None:
        if self._random.random() < 0.5:
            return self._hosts.fail(process, LOG_FILES, verb, key)
        if not key.startswith(LOG_FILES) or verb != "put_if_absent":
            return None
        process.view.interfere = None
        process.view.cut(self._random.uniform(1, 100))
        return self._random.choice(FATES)

    def _cut_heads(self) -> None:
        """A producer cannot write its hints, or a host cannot read them."""
        if process := self._hosts.some([*self.processes, *self._hosts.cluster.processes]):
            process.view.cut(self._random.uniform(5, 150), prefix=LOG_HINTS)

    def _grow(self) -> None:
        """The log grows."""
        start_outside(self.known.grow())


KINDS: dict[str, type[FedStream | LoggedStream]] = {
    "log": LoggedStream,
    "splits": SplittingStream,
    "positions": PositionsStream,
    "queues": QueuesStream,
}
"""By the name that `simulate` takes."""
