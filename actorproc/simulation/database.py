"""A simulated sink: a database that hosts reach over a network with faults. Rows and positions are one transaction."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, ClassVar, NoReturn, TypeVar

import pyarrow as pa
from anyio.lowlevel import checkpoint

from actorproc.runtime.clock import SYSTEM
from actorproc.simulation.faults import LATENCY_ONLY, Faults, Range
from actorproc.simulation.loop import current_host, current_loop, start_outside
from actorproc.sinks.options import SinkOptions
from actorproc.sinks.protocol import Ability, Delivery, Guarantee, Sink, SinkError, SinkMoved, SinkRefused, SinkRow

T = TypeVar("T")
Row = Mapping[str, Any]

NAME = "database"
"""Of the sink."""


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of one commit, as one delivery has brought them."""

    life: int
    term: str
    rows: list[Row]


@dataclass(slots=True)
class Contents:
    """What the database holds of one partition."""

    row: SinkRow | None = None
    blocks: dict[int, tuple[Block, ...]] = field(default_factory=dict)
    """By number of the commit."""

    def copy(self) -> Contents:
        return Contents(self.row, dict(self.blocks))


Key = tuple[Any, ...]
Version = tuple[int, int, int]
"""Lives that have delivered, depth of the partition, number of the commit."""


@dataclass(slots=True)
class Everything:
    """What the database holds."""

    contents: dict[str, Contents] = field(default_factory=dict)
    """By partition."""
    keyed: dict[Key, tuple[Version, Row]] = field(default_factory=dict)
    """With `mode = "upsert"`: the newest row of each key."""
    registrations: tuple[str, ...] = ()
    """That have delivered, in order."""

    def copy(self) -> Everything:
        contents = {partition: contents.copy() for partition, contents in self.contents.items()}
        return Everything(contents, dict(self.keyed), self.registrations)


Landed = Callable[[Delivery, Contents], None]


class SimulatedDatabase:
    """The database, and the faults of the way to it.

    Args:
        landed: called with each transaction that lands, and with the contents before it.
        options: of the sink.
    """

    def __init__(self, landed: Landed, options: Mapping[str, Any], *, seed: object = 0) -> None:
        self.options = SinkOptions(**options)
        self.held = Everything()
        self.former: list[dict[str, Contents]] = []
        """Contents that a restored backup has replaced, since `forget_former`."""
        self.faults: Faults = LATENCY_ONLY
        self.refusing = 0.0
        """Share of deliveries that are refused, as if a value did not fit."""
        self.injected: Counter[str] = Counter()
        self._landed = landed
        self._seed = seed
        self._away_until = 0.0
        self._connections = 0

    def connect(self) -> SimulatedSink:
        """The sink of one process."""
        self._connections += 1
        return SimulatedSink(self, Random(f"{self._seed}/sink/{self._connections}"))  # noqa: S311

    def away(self, seconds: float) -> None:
        """Stop the database for so many seconds. What arrives meanwhile is lost."""
        self._away_until = max(self._away_until, current_loop().now + seconds)
        self.injected["sink_outage"] += 1

    def heal(self) -> None:
        """End outage and faults."""
        self._away_until, self.faults, self.refusing = 0.0, LATENCY_ONLY, 0.0

    @property
    def contents(self) -> dict[str, Contents]:
        """By partition."""
        return self.held.contents

    def backup(self) -> Everything:
        """A copy of everything."""
        return self.held.copy()

    def restore(self, backup: Everything) -> None:
        """Go back to a backup."""
        self.former.append(self.contents)
        self.held = backup.copy()
        self.injected["sink_restored"] += 1

    # For the connections

    @property
    def is_away(self) -> bool:
        return current_loop().now < self._away_until

    def read(self, partition: str) -> SinkRow | None:
        found = self.contents.get(partition)
        return None if found is None else found.row

    def apply(self, delivery: Delivery) -> None:
        """One transaction.

        Raises:
            SinkMoved: the sink's row is not the expected one.
        """
        found = self.contents.setdefault(delivery.partition, Contents())
        if found.row != delivery.was:
            self.injected["sink_moved"] += 1
            raise SinkMoved(f"{found.row} is not {delivery.was}")
        before = found.copy()
        if delivery.replace_after is not None:
            _delete_after(found, delivery.replace_after)
        self.insert(found, delivery)
        if self.options.mode == "upsert":
            self._upsert(delivery)
        found.row = delivery.now
        self._landed(delivery, before)

    @staticmethod
    def insert(contents: Contents, delivery: Delivery) -> None:
        """Add the rows."""
        first = 0
        for number, count in enumerate(delivery.counts, delivery.since):
            block = Block(delivery.now.life, delivery.now.term, delivery.rows.slice(first, count).to_pylist())
            contents.blocks[number] = (*contents.blocks.get(number, ()), block)
            first += count

    def _upsert(self, delivery: Delivery) -> None:
        held = self.held
        if delivery.registration not in held.registrations:
            held.registrations = (*held.registrations, delivery.registration)
        life, rows, first = held.registrations.index(delivery.registration), delivery.rows.to_pylist(), 0
        for number, count in enumerate(delivery.counts, delivery.since):
            version = (life, delivery.depth, number)
            for row in rows[first : first + count]:
                key = tuple(row[column] for column in self.options.key)
                if key not in held.keyed or version >= held.keyed[key][0]:
                    held.keyed[key] = version, row
            first += count


def _delete_after(contents: Contents, sequence: int) -> None:
    """Delete the rows of greater sequences."""
    for number, blocks in contents.blocks.items():
        contents.blocks[number] = tuple(
            replace(block, rows=[row for row in block.rows if row["_sequence"] <= sequence]) for block in blocks
        )


class SimulatedSink(Sink):
    """The connection of one process to the database. A request travels outside of all hosts, as in `FaultyBackend`."""

    guarantee = Guarantee.EXACTLY_ONCE
    can: ClassVar[frozenset[Ability]] = frozenset({"upsert", "replace"})

    def __init__(self, database: SimulatedDatabase, random: Random) -> None:
        self.url = "simulated:database"
        sizes = {"batch_rows": random.choice([1, 20, 50_000]), "buffer_bytes": random.choice([1, 2_000, 2**24])}
        self.options = database.options.model_copy(update=sizes)
        self.interfere: Callable[[str, str], str | None] | None = None
        """Decides the fate of each request, by verb and partition, as in `FaultyBackend`."""
        self._database = database
        self._random = random

    async def open(self, schema: pa.Schema) -> None:
        await self._send("open", "", lambda: None)

    async def read(self, partition: str) -> SinkRow | None:
        return await self._send("read", partition, lambda: self._database.read(partition))

    async def write(self, delivery: Delivery) -> None:
        if delivery.rows.num_rows and self._happens("sink_refused", self._database.refusing):
            raise SinkRefused("a value does not fit")
        await self._send("write", delivery.partition, lambda: self._database.apply(delivery))

    async def close(self) -> None:
        """Do nothing: a request that is on its way arrives all the same."""

    async def _send(self, verb: str, partition: str, work: Callable[[], T]) -> T:
        host = current_host()
        if host is not None and not host.alive:
            await checkpoint()  # an endless retry must not stop the virtual time
            raise SinkError(f"the simulated host {host.name} is dead")
        database, faults = self._database, self._database.faults
        if database.is_away:
            await self._no_answer(verb)
        match self._fate(verb, partition):
            case "lost_request":
                await self._no_answer(verb)
            case "lost_reply":
                start_outside(self._land(work, self._between(faults.latency)))
                await self._no_answer(verb)
            case "late_write":
                start_outside(self._land(work, self._between(faults.lateness)))
                await self._no_answer(verb)
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        latency = self._between(faults.latency)
        start_outside(self._answer(work, latency * self._random.random(), latency, reply))
        return await reply

    def _fate(self, verb: str, partition: str) -> str | None:
        if self.interfere is not None and (fate := self.interfere(verb, partition)) is not None:
            return fate
        if verb != "write":
            return "lost_request" if self._happens("sink_lost_request", self._database.faults.lost_request) else None
        shares = self._database.faults
        for kind in ("lost_request", "lost_reply", "late_write"):
            if self._happens(f"sink_{kind}", getattr(shares, kind)):
                return kind
        return None

    async def _answer(self, work: Callable[[], T], arrives: float, takes: float, reply: asyncio.Future[T]) -> None:
        await SYSTEM.sleep(arrives)
        if self._database.is_away:
            return  # the caller notices only by the silence
        try:
            answer, error = work(), None
        except Exception as raised:  # noqa: BLE001  # for the caller
            answer, error = None, raised
        await SYSTEM.sleep(takes - arrives)
        if reply.done():
            return  # the caller was cancelled
        if error is not None:
            reply.set_exception(error)
        else:
            reply.set_result(answer)  # type: ignore[arg-type]

    async def _land(self, work: Callable[[], T], arrives: float) -> None:
        """The request lands, and nobody gets the answer."""
        await SYSTEM.sleep(arrives)
        if not self._database.is_away:
            try:
                work()
            except SinkMoved:
                return

    async def _no_answer(self, verb: str) -> NoReturn:
        await SYSTEM.sleep(self._between(self._database.faults.silence) * self._random.choice([0.01, 1.0]))
        raise SinkError(f"no answer to {verb}")

    def _happens(self, kind: str, share: float) -> bool:
        happens = self._random.random() < share
        self._database.injected[kind] += happens
        return happens

    def _between(self, least_most: Range) -> float:
        return self._random.uniform(*least_most)
