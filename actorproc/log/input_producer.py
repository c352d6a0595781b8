"""Produces the records of an input, and knows at any moment which of its lines are in the log."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from actorproc.errors import UsageError
from actorproc.log.batches import Deliveries
from actorproc.log.input_formats import BadLine, InputBlock, InputFormat
from actorproc.log.producer import Producer
from actorproc.runtime.clock import SYSTEM, Clock

_IN_FLIGHT = 64  # sends before the oldest must be confirmed, so that a failure is noticed soon
_PACE = 0.1  # seconds between two sends when a rate is given

OnBadLine = Literal["fail", "keep", "skip"]
"""A bad line ends the call, is sent without a key, or is skipped."""


class Produced(NamedTuple):
    """Numbers of records and lines so far."""

    records: int
    bytes: int
    """Of input, line breaks included."""
    unkeyed: int
    """Records without a key, although the format has keys."""
    kept: int
    """Bad lines among those."""
    skipped: int
    """Bad lines that were not sent."""
    partitions: Mapping[str, int]
    """Records by partition."""


class Delivered(NamedTuple):
    """What is known about the lines of an input at a moment. It is final once the producer is closed."""

    records: int
    """Confirmed: these records are in the log."""
    doubtful: int
    """Sent, and neither confirmed nor refused: these records may be in the log."""
    next_line: int
    """Number, from 1, of the first line that may be missing. All records before it are in the log."""
    beyond: int
    """Confirmed records after `next_line`, because partitions advance independently."""


class DeliveryTracker:
    """Tracks which lines of an input were delivered."""

    def __init__(self) -> None:
        self._confirmed = 0  # records of sends that are not in flight any more
        self._in_flight: deque[tuple[Deliveries, Sequence[int]]] = deque()  # oldest first
        self._next = 1

    def begin(self, numbers: Sequence[int]) -> Deliveries:
        """Track a send of the lines with these numbers, by the deliveries that are returned."""
        deliveries = Deliveries()
        self._in_flight.append((deliveries, numbers))
        return deliveries

    def advance(self, number: int) -> None:
        """All lines before line `number` were sent or skipped."""
        self._next = number

    async def settle(self, most: int) -> None:
        """Wait until at most `most` sends are in flight. Raises the error of a send that failed."""
        while len(self._in_flight) > most:
            deliveries, _ = self._in_flight[0]
            await deliveries.confirmed()
            self._in_flight.popleft()
            self._confirmed += len(deliveries)

    def delivered(self) -> Delivered:
        """The state of all lines now."""
        records, doubtful, beyond = self._confirmed, 0, 0
        missing: int | None = None
        for deliveries, numbers in self._in_flight:
            known = deliveries.known()
            records += len(known)
            doubtful += len(deliveries) - len(known) - deliveries.refused()
            if missing is not None:
                beyond += len(known)
            elif len(known) < len(numbers):
                mask = np.zeros(len(numbers), bool)
                mask[known] = True
                first = int(mask.argmin())
                missing, beyond = numbers[first], len(known) - first
        return Delivered(records, doubtful, self._next if missing is None else missing, beyond)


class InputProducer:
    """Sends the records of an input.

    Args:
        rate: records per second, at most.
        on_bad_line: what to do with a line that has no usable key. With 'fail' the lines before it are sent.
        report: called with each bad line that does not end the call.
        progress: called after each block; with a rate, some ten times a second.
        tracker: a new one, which knows how far the input was delivered, however `run` ends.

    Raises:
        UsageError: the rate is not a positive number.
    """

    def __init__(
        self,
        producer: Producer,
        *,
        rate: float | None = None,
        on_bad_line: OnBadLine = "fail",
        report: Callable[[BadLine], None] = lambda _: None,
        progress: Callable[[Produced], None] = lambda _: None,
        tracker: DeliveryTracker | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        if rate is not None and not 0 < rate < math.inf:
            raise UsageError(f"rate = {rate!r}: more than 0 records per second, and finite")
        self._producer = producer
        self._rate = rate
        self._on_bad_line = on_bad_line
        self._report = report
        self._progress = progress
        self._tracker = tracker or DeliveryTracker()
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._produced = Produced(0, 0, 0, 0, 0, self._counts)

    async def run(self, records: InputFormat) -> Produced:
        """Send all records. On return they are in the log.

        Raises:
            StoreError: some records could not be appended, or their outcome is unknown.
            BadLine: a line is bad, and that is to fail.
            UsageError: a line is too long.
        """
        began = self._clock.monotonic()
        while (fetched := await self._clock.run_in_thread(records.fetch, abandon=True)) is not None:
            block = records.parse(fetched)
            failed = min(block.bad) if block.bad and self._on_bad_line == "fail" else None
            await self._send(self._chosen(block, failed), began)
            if failed is not None:
                self._tracker.advance(block.numbers[failed])
                await self._producer.flush()
                raise block.bad[failed]
            self._tracker.advance(block.next_line)
        await self._producer.flush()
        return self._produced

    def _chosen(self, block: InputBlock, failed: int | None) -> InputBlock:
        """The records of a block to send. `failed`: index of the first one that ends the call."""
        if failed is not None:
            keys = None if block.keys is None else block.keys[:failed]
            return block._replace(values=block.values[:failed], keys=keys, numbers=block.numbers[:failed])
        for error in block.bad.values():
            self._report(error)
        if block.bad and self._on_bad_line == "keep":
            self._produced = self._produced._replace(kept=self._produced.kept + len(block.bad))
        elif block.bad:
            self._produced = self._produced._replace(skipped=self._produced.skipped + len(block.bad))
            good = [index for index in range(len(block.values)) if index not in block.bad]
            return block._replace(
                values=[block.values[index] for index in good],
                keys=None if block.keys is None else [block.keys[index] for index in good],
                numbers=[block.numbers[index] for index in good],
            )
        return block

    async def _send(self, block: InputBlock, began: float) -> None:
        """Send the records of a block, paced by the rate."""
        total, before = len(block.values), self._produced.bytes
        step = total if self._rate is None else max(1, int(self._rate * _PACE))
        for start in range(0, total, step or 1):
            part = slice(start, start + step)
            keys = None if block.keys is None else block.keys[part]
            deliveries = self._tracker.begin(block.numbers[part])
            await self._producer.send_many(block.values[part], keys=keys, into=deliveries)
            self._tracker.advance(block.numbers[part][-1] + 1)
            for partition, count in deliveries.counts().items():
                self._counts[partition] = self._counts.get(partition, 0) + count
            self._produced = self._produced._replace(
                records=self._produced.records + len(deliveries),
                bytes=before + block.size * min(start + step, total) // total,
                unkeyed=self._produced.unkeyed + (0 if keys is None else keys.count(None)),
            )
            await self._tracker.settle(_IN_FLIGHT)
            if self._rate is not None:
                await self._clock.sleep(max(0.0, began + self._produced.records / self._rate - self._clock.monotonic()))
            self._progress(self._produced)
