"""A hub of Azure Event Hubs as a source, over AMQP: leases decide who reads which partition."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import anyio
from azure.eventhub.aio import EventHubConsumerClient

from actorproc.config.settings import Settings
from actorproc.connectors.eventhubs.address import CONNECTION_STRING, HubAddress
from actorproc.connectors.eventhubs.columns import to_batch
from actorproc.connectors.eventhubs.errors import CLIENT_ERRORS, final_error, first_line
from actorproc.connectors.eventhubs.receiver import Place, Receiver, receiving
from actorproc.connectors.eventhubs.sender import send
from actorproc.connectors.shared.azure_checkpoints import CHECKPOINTS, AzureCheckpoints
from actorproc.connectors.shared.entra_login import EntraLogin
from actorproc.errors import RecordsLost, SourceError, UsageError
from actorproc.records import Batch, Cursor
from actorproc.runtime.budget import ReadBudget
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger
from actorproc.sources.patience import Patience
from actorproc.sources.protocol import Chunk, End, Source, Start
from actorproc.sources.replay_target import Appendable

T = TypeVar("T")

_CLOSING = 5.0
"""Seconds for which `close` waits for connections: the client takes two for its own tasks."""

_SILENCE = 0.25  # seconds without an event after which the service is asked whether that was all
_ASK_EACH = 10.0  # seconds between two such questions, each of which takes a connection

_LISTED = 5.0  # seconds for which a list of partitions is good: a start asks for it several times
_CREATED = 1.0  # seconds for which the time of the hub's creation is good: partitions are opened together

logger = get_logger(__name__)


@dataclass(slots=True)
class _Tail:
    """The end of a partition, as far as it is known.

    The service would tell it with each event, but the client then takes five times as long to decode one. So it is
    asked where no event comes.

    Attributes:
        newest: sequence number of the newest event.
        is_reached: it was read, and none has come since.
        asked: when the service was asked.
    """

    newest: int
    is_reached: bool
    asked: float = -math.inf

    def wait(self, sequence: int, now: float, most: float) -> float:
        """Seconds to wait for events from `sequence` on, before the service is asked."""
        if self.is_reached or sequence <= self.newest:
            return most
        return min(most, max(_SILENCE, self.asked + _ASK_EACH - now))


class EventHubsSource(Source, Appendable):
    """Reads a hub in a consumer group. A partition is the service's, a sequence and a position its sequence number.

    Args:
        url: `eventhubs+amqp://NAMESPACE/HUB[?group=NAME]`; a namespace with a dot is taken as the whole host name.
        options: see `EventHubsOptions`. The content of a file: `@PATH`.
        settings: `on_out_of_range` applies when the next event is no longer in the hub, `store_patience` for
            how long a lost connection is made anew before the partition counts as failed.

    Raises:
        UsageError: the URL is not of its form, or an option is wrong.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, str | int | float | bool] | None = None,
        *,
        settings: Settings | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.url = url
        self._address = HubAddress.of(url, options or {})
        self._settings = settings or Settings.load()
        self._clock = clock
        self._entra = EntraLogin(url, CONNECTION_STRING, "eventhubs")
        self._created: datetime | None = None
        self._told: tuple[float, dict[str, Any]] | None = None
        """What the service said of the hub, and when it was asked."""
        self._asking = anyio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self._azure: AzureCheckpoints | None = None

    async def open(self) -> None:
        """Connect.

        Raises:
            UsageError: the login is missing, or is of another namespace.
            SourceError: the service cannot be reached, refuses the login, or has no such hub.
        """
        self._created = created = (await _answer(f"source {self.url}", self._hub(0)))["created_at"]
        self.identity = f"eventhubs:{self._address.host}/{self._address.hub}@{created.isoformat()}"

    async def close(self) -> None:
        if self._closing:
            await asyncio.wait(self._closing, timeout=_CLOSING)
        await self._entra.close()

    # Questions

    async def partitions(self) -> Sequence[str]:
        return list((await _answer(f"source {self.url}", self._hub(_LISTED)))["partition_ids"])

    async def start(self, partition: str, at: Start) -> str:
        about = await _answer(self._name(partition), self._about(partition))
        if at == "earliest":
            return str(about["beginning_sequence_number"])
        if at == "latest" or about["is_empty"] or at > about["last_enqueued_time_utc"]:
            return str(about["last_enqueued_sequence_number"] + 1)
        return str(await self._first_at(partition, at))

    async def position_of(self, consumer: str, partition: str) -> str | None:
        """Where Azure's processors are, as `eventhubs-checkpoints:URL`."""
        if not consumer.startswith(CHECKPOINTS):
            raise UsageError(f"start_from = {consumer!r}: {self.url} knows the positions of {CHECKPOINTS}URL")
        if self._azure is None:
            self._azure = AzureCheckpoints(consumer.removeprefix(CHECKPOINTS), self._address.host.partition(":")[0])
        sequence = (await self._clock.run_in_thread(self._azure.read, self._address.hub)).get(int(partition))
        return None if sequence is None else str(sequence + 1)

    async def end(self, partition: str) -> End:
        about = await _answer(self._name(partition), self._about(partition))
        last = int(about["last_enqueued_sequence_number"])
        return End(str(last + 1), None if about["is_empty"] else last)

    async def position_at(self, partition: str, sequence: int) -> str:
        return str(sequence)

    def sequence_before(self, partition: str, position: str) -> int:
        return _sequence(position) - 1

    def reached(self, cursor: Cursor, end: End) -> bool:
        return _sequence(cursor.position) >= _sequence(end.position) or super().reached(cursor, end)

    async def _hub(self, age: float) -> dict[str, Any]:
        """The service's description of the hub, at most so many seconds old. Each question takes a connection."""
        since = self._clock.monotonic() - age
        async with self._asking:
            if self._told is None or self._told[0] < since:
                now = self._clock.monotonic()
                self._told = now, await self._asked(lambda client: client.get_eventhub_properties())
            return self._told[1]

    async def _about(self, partition: str) -> dict[str, Any]:
        return await self._asked(lambda client: client.get_partition_properties(partition))

    async def _asked(self, question: Callable[[EventHubConsumerClient], Awaitable[T]]) -> T:
        """The answer, on a connection of its own. The client itself would wait for minutes if the network is silent."""
        limit = self._settings.store_patience
        with anyio.move_on_after(limit):
            async with self._address.client(self._entra) as client:
                return await question(client)
        raise SourceError(f"{self.url} has not answered within {limit:g} s (store_patience)")

    def _name(self, partition: str) -> str:
        return f"partition {partition} of {self.url}"

    async def _first_at(self, partition: str, time: datetime) -> int:
        """Sequence number of the first event that was enqueued at or after this time, of which there is one."""
        what = self._name(partition)
        async with self._receiving(partition, time, None) as receiver:
            events = await _answer(what, receiver.next(self._settings.store_patience))
        if not events:
            raise SourceError(f"{what} gave no event from {time.isoformat()} on within store_patience")
        return events[0].sequence_number or 0

    # Reading

    def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        return self.read_within(partition, position, ReadBudget.unlimited())

    async def read_within(self, partition: str, position: str, budget: ReadBudget) -> AsyncGenerator[Chunk, None]:
        """Read with the epoch of the lease. A lost connection is made anew at the next event."""
        patience, what = Patience(self._clock, self._settings.store_patience), self._name(partition)
        epoch = budget.epoch if self._address.options().exclusive else None
        sequence = _sequence(position)
        while True:
            try:
                sequence, newest = await self._readable(partition, sequence)
                tail = _Tail(newest, sequence > newest)
                if tail.is_reached:
                    yield Chunk(Batch.empty(partition), str(sequence))
                async with self._receiving(partition, sequence, epoch) as receiver:
                    while True:
                        async for chunk in self._chunks(partition, sequence, receiver, tail):
                            sequence = _sequence(chunk.next)
                            yield chunk
                        patience.renew()
            except CLIENT_ERRORS as error:
                if (final := final_error(what, error)) is not None:
                    raise final from error
                self._told = None  # the hub may have been created again
                logger.info("eventhubs.reconnecting", source=self.url, partition=partition, error=first_line(error))
                await patience.pause(SourceError(f"{what} cannot be read: {first_line(error)}"), error)

    async def _chunks(
        self, partition: str, sequence: int, receiver: Receiver, tail: _Tail
    ) -> AsyncGenerator[Chunk, None]:
        """The next events, or an empty chunk where they end. Nothing if the service is silent before the end."""
        now = self._clock.monotonic()
        least = max(1, min(receiver.most, tail.newest - sequence + 1))  # a backlog is read in larger chunks
        if events := await receiver.next(tail.wait(sequence, now, self._settings.max_read_time / 3), least):
            tail.is_reached = False
            batch = to_batch(partition, events)
            yield Chunk(batch, str(batch.last + 1))
            return
        tail.newest = int((await self._about(partition))["last_enqueued_sequence_number"])
        tail.asked, tail.is_reached = self._clock.monotonic(), tail.newest < sequence
        if tail.is_reached:
            yield Chunk(Batch.empty(partition), str(sequence))

    def _receiving(self, partition: str, place: Place, epoch: int | None) -> AbstractAsyncContextManager[Receiver]:
        prefetch = self._address.options().prefetch
        client = self._address.client(self._entra, retries=0)
        return receiving(client, partition, place, prefetch=prefetch, epoch=epoch, left=self._leave)

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _readable(self, partition: str, sequence: int) -> tuple[int, int]:
        """The sequence number to read from, and that of the newest event.

        Raises:
            RecordsLost: the hub was created again, or has lost events; or events were removed by its retention before
                they were read, and `on_out_of_range` is "fail".
        """
        hub, about = await asyncio.gather(self._hub(_CREATED), self._about(partition))
        if (created := hub["created_at"]) != self._created:
            raise RecordsLost(
                f"the hub of {self.url} was deleted and created again at {created}: sequence numbers of one "
                "mean nothing in the other. Give the processor another name, which then begins the new hub"
            )
        first, last = int(about["beginning_sequence_number"]), int(about["last_enqueued_sequence_number"])
        if sequence > last + 1:
            raise RecordsLost(
                f"{self._name(partition)}: sequence number {sequence} lies beyond the end {last + 1}: the "
                "hub has lost events, or was created again"
            )
        if sequence < first:
            sequence = self._after_loss(partition, sequence, first, last + 1)
        return sequence, last

    def _after_loss(self, partition: str, sequence: int, first: int, end: int) -> int:
        if (policy := self._settings.on_out_of_range) != "fail":
            at = first if policy == "earliest" else end
            logger.warning("source.records_lost", source=self.url, partition=partition, records=at - sequence, at=at)
            return at
        raise RecordsLost(
            f"{self._name(partition)}: {first - sequence:,} events before sequence number {first} were "
            "removed by the hub's retention before they were read (on_out_of_range = fail)"
        )

    # Writing

    async def append(self, partition: str, records: Batch, transaction: str) -> Mapping[int, str]:
        """Send records as events, whose times the service sets."""
        async with self._address.producer(self._entra) as client:
            return await _answer(self._name(partition), send(client, partition, records))


async def _answer(what: str, answer: Awaitable[T]) -> T:
    """Raises SourceError: `what` cannot be reached, or the login is refused."""
    try:
        return await answer
    except CLIENT_ERRORS as error:
        unreachable = SourceError(f"{what} cannot be reached: {first_line(error)}")
        raise final_error(what, error) or unreachable from error


def _sequence(position: str) -> int:
    """Raises SourceError: the position is no sequence number."""
    try:
        return int(position)
    except ValueError:
        raise SourceError(f"position {position!r} is no sequence number of a hub") from None
