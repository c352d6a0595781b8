"""The records of a chaos run, the handler with a result for each, and the results that a record may have."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

import orjson
import pyarrow as pa

from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.one_by_one import OneByOne
from actorproc.handler.wake_context import WakeContext
from actorproc.records import Batch, Record
from actorproc.runtime.clock import SYSTEM
from tests.chaos.counts import GAP, Session, count, count_key, keeps_counts, timer_row

SCHEMA = (
    "producer string, number long, part int, parts int, host string, epoch long, attempt int, token string, "
    "count long, session long, gone boolean"
)
GROWN = f"{SCHEMA}, twice long"
"""The columns of a later version."""

KINDS = {
    "row": 480,  # one row
    "many": 140,  # two to five rows
    "drop": 200,  # nothing
    "raise": 12,  # fails the whole batch, every time
    "alone": 12,  # says itself that this record alone has failed
    "misfit": 12,  # emits a row that does not fit the schema
    "letter": 30,  # gives the record up
    "by-host": 25,  # one of UNSTEADY, another one on each host
    "by-epoch": 25,  # ... under each epoch
    "by-attempt": 40,  # ... at each attempt
    "commit": 12,  # one row, and a commit in the middle of the batch
    "slow": 11,  # one row, after a tenth of a second
    "long": 1,  # one row, after longer than a handoff may take
}
"""Kind of record -> how many in a thousand."""

UNSTEADY = ("row", "many", "drop", "raise", "letter")
FAILURES = {"raise": "Spoilt", "alone": "Spoilt", "misfit": "RowMismatch", "letter": "DeadLetter"}
"""Ends that are a dead letter -> the type of error in it."""

SLOW, LONG = 0.1, 3.0  # seconds

_WHEEL = [kind for kind, share in KINDS.items() for _ in range(share)]


def key_of(producer: str, number: int) -> bytes:
    """Keys repeat, so that each burst of a producer goes to a few partitions and all get their share over time."""
    return b"key-%d" % (_hash(f"{producer}/{number // 16}") % 97)


def value_of(producer: str, number: int) -> bytes:
    return orjson.dumps({"producer": producer, "number": number, "text": "x" * (number % 50)})


def kind_of(producer: str, number: int) -> str:
    """The kind of a record, by its hash."""
    return _WHEEL[_hash(f"kind/{producer}/{number}") % len(_WHEEL)]


def end_of(producer: str, number: int, host: str, epoch: int, attempt: int) -> str:
    """How the handler ends a record there and then: 'row', 'many', 'drop' or one of FAILURES."""
    kind = kind_of(producer, number)
    factor = {"by-host": host, "by-epoch": epoch, "by-attempt": attempt}.get(kind)
    if factor is not None:
        return UNSTEADY[_hash(f"{producer}/{number}/{factor}") % len(UNSTEADY)]
    return "row" if kind in ("commit", "slow", "long") else kind


def may_end_silently(producer: str, number: int) -> bool:
    return kind_of(producer, number) in ("drop", "by-host", "by-epoch", "by-attempt")


def parts_of(end: str, number: int) -> int:
    """How many rows the end leaves."""
    return {"row": 1, "many": 2 + number % 4}.get(end, 0)


def _hash(text: str) -> int:
    return zlib.crc32(text.encode())


class Spoilt(Exception):
    """A record that fails."""


class ChaosHandler(PartitionHandler):
    """The hash of a record decides its treatment. All rows of one attempt bear its token. The partition decides the
    style of the handler, and whether it keeps state."""

    output_schema = SCHEMA
    has_twice: ClassVar[bool] = False
    State: ClassVar[Any] = {"counts": int, "sessions": Session}

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        attempt = _Attempt(batch, ctx, has_twice=self.has_twice)
        match int(ctx.partition.rpartition("-")[2]) % 4:
            case 0:  # one after the other
                for record in batch:
                    await attempt.one(record)
            case 1:  # many at once, some of which commit while others are at work
                await ctx.map(batch, attempt.one_of_many, concurrency=16)
            case 2:  # a table, after each third of the batch
                third = -(-len(batch) // 3)
                for start in range(0, len(batch), third):
                    await attempt.columns(batch[start : start + third])
            case 3:  # one after the other, and a record that fails takes back its own changes alone
                await attempt.one_by_one(batch)

    def on_wake(self, key: Any, ctx: WakeContext) -> dict[str, Any]:
        """The session of a key is over. Some timers fail at first."""
        sessions = ctx.state("sessions")
        session = sessions[key]
        sessions.delete(key)
        if ctx.attempt == 1 and _hash(f"{ctx.host}/{ctx.epoch}/{key}") % 50 == 0:
            raise Spoilt(f"the timer of {key} fails")
        made = {"host": ctx.host, "epoch": ctx.epoch, "attempt": ctx.attempt, "token": SYSTEM.nonce()}
        row = timer_row(key, session, **made)
        return row | more_of(row, has_twice=self.has_twice)


class GrownHandler(ChaosHandler):
    """The same in a later version, with one more column."""

    output_schema = GROWN
    has_twice = True


def more_of(row: Mapping[str, Any], *, has_twice: bool) -> dict[str, Any]:
    """Columns that follow from others. A row with `gone` deletes its key in a sink that keeps the newest rows."""
    twice = {"twice": 2 * row["number"]} if has_twice else {}
    return {"gone": _hash(f"{row['token']}/{row['number']}") % 6 == 0, **twice}


class _Attempt:
    """One attempt at a batch."""

    def __init__(self, batch: Batch, ctx: PartitionContext, *, has_twice: bool) -> None:
        self._ctx, self._has_twice = ctx, has_twice
        # Changes of state are not known by record, so only the whole batch can be committed.
        self._least_commit = batch.last if keeps_counts(ctx.partition) else -1
        self._made = {"host": ctx.host, "epoch": ctx.epoch, "attempt": ctx.attempt, "token": SYSTEM.nonce()}

    async def one(self, record: Record) -> None:
        """Emit the rows of a record, fail it or commit, as the record asks."""
        rows = await self._rows(record)
        self._ctx.emit_many(record, rows)
        self._end(record)
        if _kind(record) == "commit" and record.sequence >= self._least_commit:
            await self._ctx.commit(record)

    async def one_of_many(self, record: Record) -> None:
        """The same for records processed concurrently. Rows emitted after a commit are no part of it."""
        rows = await self._rows(record)
        self._ctx.emit_many(record, rows[:1])
        if _kind(record) == "commit":
            await self._ctx.commit()
        await SYSTEM.sleep(_hash(f"{self._made['token']}/{record.sequence}") % 8 / 1000)
        self._ctx.emit_many(record, rows[1:])
        self._end(record)

    async def one_by_one(self, batch: Batch) -> None:
        """As a RecordHandler does."""
        alone = OneByOne(self._ctx)
        for record in batch:
            alone.begin()
            try:
                rows = await self._rows(record)
                self._end(record)
            except Spoilt as error:
                alone.failed(record, error)
            else:
                self._ctx.emit_many(record, alone.fitting(record, rows) or ())
            if alone.ends_at(record.sequence):
                return

    async def columns(self, batch: Batch) -> None:
        """The rows of many in one table, in the opposite order of the records."""
        made = [(record.sequence, await self._rows(record)) for record in batch]
        rows = [(sequence, row) for sequence, some in reversed(made) for row in some]
        columns = {"_sequence": pa.array([sequence for sequence, _ in rows], pa.int64())}
        columns |= {name: pa.array([row[name] for _, row in rows]) for name in (rows[0][1] if rows else ())}
        self._ctx.emit_arrow(pa.table(columns))
        for record in batch:
            self._end(record)
        if any(_kind(record) == "commit" for record in batch) and batch.last >= self._least_commit:
            await self._ctx.commit(batch[-1])

    async def _rows(self, record: Record) -> list[dict[str, Any]]:
        """The rows of a record, after a delay if the record asks for one."""
        event, ctx = record.json(), self._ctx
        producer, number = event["producer"], event["number"]
        kind, end = _kind(record), end_of(producer, number, ctx.host, ctx.epoch, ctx.attempt)
        counted = {} if end == "drop" else self._count(record, number)  # before another record's turn comes
        if kind in ("slow", "long") and ctx.attempt == 1:  # else a failing neighbour would make it many times as long
            await SYSTEM.sleep(SLOW if kind == "slow" else LONG)
        row = {"producer": producer, "number": number, "parts": parts_of(end, number), **self._made, **counted}
        row |= more_of(row, has_twice=self._has_twice)
        if end == "misfit":
            return [row | {"part": 2**40}]
        return [row | {"part": part} for part in range(row["parts"])]

    def _count(self, record: Record, number: int) -> Mapping[str, int | None]:
        """The running values of its key. A record that fails is counted, too: that change must leave no trace."""
        if not keeps_counts(record.partition):
            return {"count": None, "session": None}
        assert record.key is not None
        assert record.timestamp is not None
        state, key = self._ctx.state, count_key(record.key, number)
        self._ctx.wake(key, record.timestamp + timedelta(seconds=GAP))
        return count(state("counts"), state("sessions"), key, record.timestamp.timestamp())

    def _end(self, record: Record) -> None:
        """Let it fail, or give it up, if it asks for that."""
        event, ctx = record.json(), self._ctx
        match end_of(event["producer"], event["number"], ctx.host, ctx.epoch, ctx.attempt):
            case "letter":
                ctx.dead_letter(record, "the record asked for it")
            case "alone":
                ctx.fail(record, Spoilt(f"record {record.sequence} fails alone"))
            case "raise":
                raise Spoilt(f"record {record.sequence} fails its batch")


def _kind(record: Record) -> str:
    event = record.json()
    return kind_of(event["producer"], event["number"])
