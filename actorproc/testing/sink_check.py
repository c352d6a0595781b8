"""Checks that a sink keeps its guarantee: repeats deliveries, races them, loses replies, and counts what arrived."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from actorproc.records import SEQUENCE
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.protocol import Delivery, Guarantee, Sink, SinkMoved, SinkRow
from actorproc.testing.sink_modes_check import InvalidMode, Modes, check_keep, check_replace, check_upsert

Rows = Callable[[], Awaitable[Sequence[int]]]
"""Reads the column `n` of all rows that the target has."""

_WAIT = 60.0
_HOME = "memory://check"

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string()), SEQUENCE])

_FIRST = datetime(1, 1, 2, tzinfo=UTC)

ALL_TYPES: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "flag": (pa.bool_(), [True, False, None]),
    "tiny": (pa.int8(), [-128, 127, None]),
    "small": (pa.int16(), [-32768, 32767, None]),
    "whole": (pa.int32(), [-(2**31), 2**31 - 1, None]),
    "large": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "single": (pa.float32(), [1.5, -0.0, None]),
    "real": (pa.float64(), [1e300, float("inf"), None]),
    "odd": (pa.float64(), [float("nan"), float("-inf"), None]),
    "words": (pa.string(), ['", \\ \n\t; DROP TABLE x; --', "", None]),
    "letters": (pa.string(), ["žluťoučký 🐎", "NULL", None]),
    "bytes": (pa.binary(), [b"\x00\xff\\x", b"", None]),
    "day": (pa.date32(), [date(1970, 1, 1), date(9999, 12, 31), None]),
    "moment": (pa.timestamp("us", "UTC"), [datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), _FIRST, None]),
    "local": (pa.timestamp("us"), [datetime(2026, 1, 2, 3, 4, 5, 678901), datetime(1, 1, 2), None]),  # noqa: DTZ001
    "money": (pa.decimal128(38, 6), [Decimal("-12345678901234567890123456789012.345678"), Decimal(0), None]),
    "list": (pa.list_(pa.string()), [["a", None, '"'], [], None]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("k", 1)], [], None]),
    "struct": (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": None}, {"a": None, "b": "x"}, None]),
}  # fmt: skip
"""A column of each type that `output_schema` has, with its limits, and text that breaks what is not quoted."""


class InvalidSink(AssertionError):
    """The sink breaks a rule of docs/sinks.md."""


@dataclass(slots=True)
class CheckedSink:
    """Result of a check that found no violation."""

    guarantee: Guarantee
    """That the sink really kept: not more than it declares."""
    repeated: int = 0
    """Rows that arrived again."""
    checks: list[str] = field(default_factory=list)
    """What was tried."""


async def check_sink(
    make: Callable[[], Sink], rows: Rows, modes: Modes | None = None, *, ordered: bool = False
) -> CheckedSink:
    """Check that a sink keeps the guarantee that it declares.

    Args:
        make: makes the sink, each time as another host would: all of them have one target, which is empty.
        rows: reads the column `n` of all rows of the target.
        modes: makes a sink with options on an empty target of its own, and returns it with what reads its rows. Then
            what the sink `can` is tried, too: upsert, replace, keep.
        ordered: whether the rows come in the order in which readers of the target see them. Then it is checked, too.

    Raises:
        InvalidSink: the sink breaks a rule. Says which one.
    """
    async with asyncio.timeout(10 * _WAIT), AsyncExitStack() as stack:
        check = _Check(await _opened(stack, make, SCHEMA), await _opened(stack, make, SCHEMA), rows, ordered=ordered)
        await check.first()
        await check.repeated()
        await check.races()
        await check.lost_reply()
        await check.cut_off()
        await check.fence()
        await check.lives()
        await check.column(await _opened(stack, make, SCHEMA.insert(2, pa.field("more", pa.float64()))))
        await check.types(await _opened(stack, make, _all_types().schema))
        if modes is not None:
            await check.modes(modes)
        return check.done()


async def _opened(stack: AsyncExitStack, make: Callable[[], Sink], schema: pa.Schema) -> Sink:
    sink = await stack.enter_async_context(make())
    await sink.open(schema)
    return sink


def _all_types() -> pa.Table:
    columns = {"n": pa.array(range(3), pa.int64())}
    columns |= {name: pa.array(values, kind) for name, (kind, values) in ALL_TYPES.items()}
    return pa.table(columns).append_column(SEQUENCE, pa.array(range(3), pa.int64()))


class _Check:
    def __init__(self, one: Sink, other: Sink, rows: Rows, *, ordered: bool) -> None:
        self._ordered = ordered
        self._origin: dict[int, str] = {}  # row -> its partition
        self._one, self._other, self._rows = one, other, rows
        self._next = 0
        self._due: Counter[int] = Counter()
        self._result = CheckedSink(one.guarantee)

    # What is tried

    async def first(self) -> None:
        """A partition that the sink has never seen, deliveries in order, and one without rows."""
        self._note("first deliveries")
        if (found := await self._one.read("a")) is not None:
            raise InvalidSink(f"the target is not empty: read('a') returned {found}")
        row = await self._deliver(self._one, "a", None, 3)
        row = await self._deliver(self._other, "a", row, 2)
        await self._deliver(self._one, "a", row, 0)
        await self._deliver(self._one, "b/ '\"ü", None, 1)
        await self._compare()

    async def repeated(self) -> None:
        """An owner that was paused comes back with the delivery that it was about to make."""
        self._note("a repeated delivery")
        row = await self._row("a")
        delivery = self._delivery("a", row, 2)
        await self._lands(self._one, delivery)
        await self._is_refused(self._other, delivery)
        await self._is_refused(self._one, delivery)
        await self._compare()

    async def races(self) -> None:
        """Two owners deliver at once, on the same row, again and again, and for the first time."""
        self._note("two owners at once")
        for partition in ["a"] * 10 + [f"new-{i}" for i in range(5)]:
            row = await self._row(partition)
            rivals = [self._delivery(partition, row, 2) for _ in range(2)]
            results = await asyncio.gather(
                *(sink.write(each) for sink, each in zip((self._one, self._other), rivals, strict=True)),
                return_exceptions=True,
            )
            for each, result in zip(rivals, results, strict=True):
                if result is None:
                    self._arrived(each)
                elif not isinstance(result, SinkMoved) and isinstance(result, BaseException):
                    raise InvalidSink(f"of two deliveries at once, one failed with {result!r}, not SinkMoved")
            if self._is_exact and results.count(None) != 1:
                raise InvalidSink(f"of two deliveries on the row {row}, {results.count(None)} were accepted")
        await self._compare()

    async def lost_reply(self) -> None:
        """The owner does not learn whether its delivery has landed, and reads the row again."""
        self._note("a lost reply")
        row = await self._row("a")
        delivery = self._delivery("a", row, 2)
        await self._one.write(delivery)
        self._arrived(delivery)
        if (found := await self._other.read("a")) != delivery.now:
            raise InvalidSink(f"after a delivery, another host read {found}, not {delivery.now}")

    async def cut_off(self) -> None:
        """A delivery is cancelled at any moment: it has landed as a whole, or nothing of it."""
        self._note("a delivery that is cut off")
        for millisecond in range(8):
            row = await self._row("a")
            delivery = self._delivery("a", row, 200)
            task = asyncio.ensure_future(self._one.write(delivery))
            await SYSTEM.sleep(millisecond / 1000)
            task.cancel()
            await asyncio.wait([task])
            async with asyncio.timeout(_WAIT):  # what runs in a thread may land a little later
                await self._settled("a", delivery)
            if await self._row("a") == delivery.now:
                self._arrived(delivery)
        await self._compare()

    async def _settled(self, partition: str, delivery: Delivery) -> None:
        """Move the row, so that whatever is under way is refused, or has landed."""
        while True:
            row = await self._row(partition)
            if row == delivery.now:
                return
            moved = Delivery(partition, SCHEMA.empty_table(), delivery.since, (), row, _with_fence(row))
            try:
                await self._other.write(moved)
            except SinkMoved:
                continue
            return

    async def fence(self) -> None:
        """A pause raises the fence: what was read before cannot land."""
        self._note("a fence")
        row = await self._row("a")
        late = self._delivery("a", row, 2)
        fenced = Delivery("a", SCHEMA.empty_table(), late.since, (), row, _with_fence(row))
        await self._other.write(fenced)
        await self._is_refused(self._one, late)
        await self._compare()

    async def lives(self) -> None:
        """The sink was registered anew: an owner of the earlier registration cannot deliver any more."""
        self._note("another registration")
        row = await self._row("a")
        late = self._delivery("a", row, 1)
        new = self._delivery("a", row, 1)
        new = Delivery("a", new.rows, 0, new.counts, row, SinkRow(_HOME, 2, "second", 0, 1))
        await self._lands(self._other, new)
        await self._is_refused(self._one, late)
        await self._compare()

    async def column(self, sink: Sink) -> None:
        """The output has one more column: earlier hosts go on, too."""
        self._note("one more column")
        wide = self._delivery("c", None, 2)
        more = wide.rows.add_column(2, pa.field("more", pa.float64()), pa.array([0.5, None], pa.float64()))
        await self._lands(sink, Delivery("c", more, 0, (2,), None, wide.now))
        await self._deliver(self._one, "c", wide.now, 1)
        await self._compare()

    async def types(self, sink: Sink) -> None:
        """A row of each type, with nulls and limits."""
        self._note("all types of output_schema")
        rows = _all_types().set_column(0, "n", pa.array(range(self._next, self._next + 3), pa.int64()))
        self._next += 3
        await self._lands(sink, Delivery("types", rows, 0, (3,), None, SinkRow(_HOME, 1, "first", 0, 1)))
        await self._compare()

    async def modes(self, modes: Modes) -> None:
        """What the sink can do beyond adding rows."""
        can = self._one.can
        tried = {
            "upsert": ("keys, deletions and versions", check_upsert), "replace": ("resets that replace", check_replace)
        }  # fmt: skip
        if "upsert" in can:
            tried["keep"] = ("refused rows that are kept", check_keep)
        for ability, (check, work) in tried.items():
            if ability in can:
                self._note(check)
                try:
                    await work(modes)
                except InvalidMode as error:
                    raise InvalidSink(str(error)) from None

    def done(self) -> CheckedSink:
        if self._ordered:
            self._note("the order of rows")
        return self._result

    # How

    @property
    def _is_exact(self) -> bool:
        return self._one.guarantee is Guarantee.EXACTLY_ONCE

    def _note(self, check: str) -> None:
        self._result.checks.append(check)

    def _delivery(self, partition: str, was: SinkRow | None, count: int) -> Delivery:
        numbers = range(self._next, self._next + count)
        self._next += count
        columns = [
            pa.array(numbers, pa.int64()),
            pa.array(map(str, numbers), pa.string()),
            pa.array(numbers, pa.int64()),
        ]
        since = was.position if was is not None else 0
        now = SinkRow(_HOME, 1, "first", was.fence if was is not None else 0, since + 1, f"put-{since}")
        rows = pa.Table.from_arrays(columns, schema=SCHEMA)
        return Delivery(partition, rows, since, (count,), was, now, put_ids=(now.put_id,))

    async def _deliver(self, sink: Sink, partition: str, was: SinkRow | None, count: int) -> SinkRow:
        delivery = self._delivery(partition, was, count)
        await self._lands(sink, delivery)
        return delivery.now

    async def _lands(self, sink: Sink, delivery: Delivery) -> None:
        await sink.write(delivery)
        self._arrived(delivery)
        if (found := await sink.read(delivery.partition)) != delivery.now:
            raise InvalidSink(f"after a delivery, read({delivery.partition!r}) returned {found}, not {delivery.now}")

    def _arrived(self, delivery: Delivery) -> None:
        numbers = delivery.rows["n"].to_pylist()
        self._due.update(numbers)
        self._origin |= dict.fromkeys(numbers, delivery.partition)

    async def _is_refused(self, sink: Sink, delivery: Delivery) -> None:
        try:
            await sink.write(delivery)
        except SinkMoved:
            return
        raise InvalidSink(f"{self._result.checks[-1]}: a delivery was accepted although the row is not {delivery.was}")

    async def _row(self, partition: str) -> SinkRow | None:
        return await self._one.read(partition)

    async def _compare(self) -> None:
        rows = await self._rows()
        found = Counter(rows)
        if missing := sorted(self._due.keys() - found.keys()):
            raise InvalidSink(f"{self._result.checks[-1]}: rows are missing: {missing[:5]}")
        extra = found - self._due
        self._result.repeated += extra.total()
        if extra and self._is_exact:
            raise InvalidSink(f"{self._result.checks[-1]}: rows arrived that were refused, or twice: {dict(extra)}")
        if self._ordered:
            self._check_order(rows)

    def _check_order(self, rows: Sequence[int]) -> None:
        """The rows of each partition come as they were delivered: their numbers grow."""
        latest: dict[str, int] = {}
        for n in rows:
            partition = self._origin.get(n, "")
            if n < latest.get(partition, n):
                raise InvalidSink(f"{self._result.checks[-1]}: row {n} comes after row {latest[partition]}")
            latest[partition] = n


def _with_fence(row: SinkRow | None) -> SinkRow:
    return SinkRow("", 0, "", 1, 0) if row is None else replace(row, fence=row.fence + 1)
