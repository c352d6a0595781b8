"""Produces the records of an input, and knows at any moment which of its lines are in the log."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from actorproc.errors import UsageError
from actorproc.produce.batches import Deliveries
from actorproc.produce.input_formats import BadLine, InputBlock, InputFormat
from actorproc.produce.producer import Producer
from actorproc.records import RECORD_SCHEMA
from actorproc.runtime.clock import SYSTEM, Clock

_IN_FLIGHT = 64  # sends before the oldest must be confirmed, so that a failure is noticed soon
BAD_LINES_MAX = 10
_PACE = 0.1  # seconds between two sends when a rate is given
_TIME = RECORD_SCHEMA.field("timestamp").type

OnBadLine = Literal["fail", "keep", "skip"]
"""A bad line ends the call, is sent without a key and with the time of the record before it, or is skipped."""


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
    """Confirmed records by the partition that holds them: all of them once the input is sent."""


class Delivered(NamedTuple):
    """The state of an input's lines at a moment. It is final once the producer is closed."""

    records: int
    """Confirmed: these records are in the log."""
    next_line: int
    """Number, from 1, of the first line that may be missing. All records before it are in the log."""
    certain: bool
    """Nothing from `next_line` on is in the log. Otherwise some records may be: partitions advance independently."""


class InputProducer:
    """Sends the records of an input, and tracks which of its lines were delivered.

    Args:
        rate: records per second, at most.
        from_line: lines before this one are passed over.
        on_bad_line: treatment of a line without a usable key or time. With 'fail' the lines before it are sent.

    Raises:
        UsageError: the rate is not a positive number.
    """

    def __init__(
        self,
        *,
        rate: float | None = None,
        from_line: int = 1,
        on_bad_line: OnBadLine = "fail",
        clock: Clock = SYSTEM,
    ) -> None:
        if rate is not None and not 0 < rate < math.inf:
            raise UsageError(f"rate = {rate!r}: more than 0 records per second, and finite")
        self._rate = rate
        self._from_line = from_line
        self._on_bad_line = on_bad_line
        self._clock = clock
        self._counts: dict[str, int] = {}
        self.produced = Produced(0, 0, 0, 0, 0, self._counts)
        self.bad_lines: list[BadLine] = []
        """The first `BAD_LINES_MAX` of those that were kept or skipped."""
        self._confirmed = 0  # records of sends that are not in flight any more
        self._in_flight: deque[tuple[Deliveries, Sequence[int]]] = deque()  # with line numbers, oldest first
        self._next_line = from_line  # all lines before it were sent or skipped

    async def run(
        self, records: InputFormat, producer: Producer, progress: Callable[[Produced], None] = lambda _: None
    ) -> Produced:
        """Send all records. On return they are in the log.

        Args:
            progress: called after each block; with a rate, some ten times a second.

        Raises:
            StoreError: some records could not be appended, or their outcome is unknown.
            BadLine: a line is bad, and that is to fail.
            UsageError: a line is too long.
        """
        began = self._clock.monotonic()
        while (block := await self._clock.run_in_thread(records.read, abandon=True)) is not None:
            if self._from_line > 1:
                block = block.select([index for index, line in enumerate(block.numbers) if line >= self._from_line])
            failed = min(block.bad) if block.bad and self._on_bad_line == "fail" else None
            if failed is None:
                chosen = self._chosen(block)
            else:
                chosen = block.select(range(failed))._replace(next_line=block.numbers[failed])
            await self._send(chosen, producer, began, progress)
            self._next_line = max(chosen.next_line, self._from_line)
            if failed is not None:
                await producer.flush()
                raise block.bad[failed]
        await producer.flush()
        while self._in_flight:
            await self._settle_oldest()
        return self.produced

    def _chosen(self, block: InputBlock) -> InputBlock:
        """Count the bad lines. Returns the records to send."""
        if not block.bad:
            return block
        self.bad_lines += list(block.bad.values())[: BAD_LINES_MAX - len(self.bad_lines)]
        if self._on_bad_line == "keep":
            self.produced = self.produced._replace(kept=self.produced.kept + len(block.bad))
            return block
        self.produced = self.produced._replace(skipped=self.produced.skipped + len(block.bad))
        return block.select([index for index in range(len(block.values)) if index not in block.bad])

    async def _send(
        self, block: InputBlock, producer: Producer, began: float, progress: Callable[[Produced], None]
    ) -> None:
        """Send the records of a block, paced by the rate."""
        total, before = len(block.values), self.produced.bytes
        step = total if self._rate is None else max(1, int(self._rate * _PACE))
        for start in range(0, total, step or 1):
            part = slice(start, start + step)
            keys = None if block.keys is None else block.keys[part]
            deliveries = Deliveries()
            self._in_flight.append((deliveries, block.numbers[part]))
            times = None if block.times is None else pa.array(block.times[part], _TIME)
            await producer.send_many(block.values[part], keys=keys, timestamps=times, into=deliveries)
            after = start + step  # a row of CSV may have several lines
            self._next_line = block.numbers[after] if after < total else block.next_line
            self.produced = self.produced._replace(
                records=self.produced.records + len(deliveries),
                bytes=before + block.size * min(start + step, total) // total,
                unkeyed=self.produced.unkeyed + (0 if keys is None else keys.count(None)),
            )
            while len(self._in_flight) > _IN_FLIGHT:
                await self._settle_oldest()
            if self._rate is not None:
                await self._clock.sleep(max(0.0, began + self.produced.records / self._rate - self._clock.monotonic()))
            progress(self.produced)

    async def _settle_oldest(self) -> None:
        """Wait for the oldest send, and count its records where they are: the log may have grown meanwhile."""
        deliveries = self._in_flight[0][0]
        await deliveries.confirmed()
        self._in_flight.popleft()
        self._confirmed += len(deliveries)
        for partition, count in deliveries.counts().items():
            self._counts[partition] = self._counts.get(partition, 0) + count

    def delivered(self) -> Delivered:
        """The state of all lines now."""
        records = self._confirmed
        missing: int | None = None
        for deliveries, numbers in self._in_flight:
            known = deliveries.known()
            records += len(known)
            if missing is None and len(known) < len(numbers):
                mask = np.zeros(len(numbers), bool)
                mask[known] = True
                missing = numbers[int(mask.argmin())]
        return Delivered(records, self._next_line if missing is None else missing, missing is None)
