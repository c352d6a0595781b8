"""Keys, values and times for `ctx.state` and `ctx.wake` come from records: a wrong one fails its record alone."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import orjson
import pyarrow as pa
import pytest
from attrs import define

from actorproc import errors
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.keyed_state import MOST_SECONDS, TIMERS
from actorproc.handler.wake_context import WakeContext
from actorproc.handlers.record_handler import RecordHandler
from actorproc.partition.results import Results
from actorproc.records import Batch, Record
from tests.partition.running import Run, column, numbers
from tests.partition.test_state import state

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Session(msgspec.Struct):
    clicks: int
    note: Any = None


Use = Callable[[PartitionContext], object]


async def results(use: Use, base: type[PartitionHandler], **traits: Any) -> tuple[Run, Results]:
    """Process three records. The second one calls `use` after it has changed the state."""

    class Waking(PartitionHandler):
        output_schema = "n long"

        def on_wake(self, key: Any, ctx: WakeContext) -> None:
            raise AssertionError(key)

    def work(record: Record, ctx: PartitionContext) -> Any:
        number = record.json()
        if number == 2:
            ctx.state("counts").set("sum", 100)
            use(ctx)
        ctx.state("counts").set("sum", ctx.state("counts").get("sum", 0) + number)
        return (number,)

    class Records(RecordHandler, Waking):
        def process_record(self, record: Record, ctx: PartitionContext) -> Any:
            return work(record, ctx)

    class Batches(Waking):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, work(record, ctx))

    kind: Any = Records if base is RecordHandler else Batches
    run, batch = Run(type("Handler", (kind,), traits)()), numbers(1, 2, 3)
    found = await run(batch)
    run.commits.add(batch, batch.last, run.commits.cursor, found, 0)
    return run, found


async def failure(use: Use, base: type[PartitionHandler] = RecordHandler, **traits: Any) -> str:
    """The message of the dead letter of the second record. Checks that only its change to the state is missing."""
    run, found = await results(use, base, **traits)
    assert list(found.letters) == [101]
    assert column(found, "n") == [1, 3]
    assert state(run) == {"sum": 4}
    error = orjson.loads(found.letters[101])["error"]
    assert error["type"] == "StateMismatch"
    return str(error["message"])


KEYS = [None, 1.5, True, ["a"], ("a", 1.5), ("a", ("b",)), {"a": 1}, NOON, 2**64, "\ud800"]


@pytest.mark.parametrize("base", [RecordHandler, PartitionHandler])
@pytest.mark.parametrize("key", [None, 1.5, ["a"]])
@pytest.mark.parametrize("use", ["get", "set", "delete", "in", "get_many", "wake", "cancel_wake", "[]", "del"])
async def test_a_key_that_is_no_key_fails_its_record(use: str, key: Any, base: type[PartitionHandler]) -> None:
    def call(ctx: PartitionContext) -> None:
        match use:
            case "set":
                ctx.state.set(key, 1)
            case "in":
                _ = key in ctx.state
            case "get_many":
                ctx.state.get_many(["a", key])
            case "wake":
                ctx.wake(key, after=1)
            case "cancel_wake":
                ctx.cancel_wake(key)
            case "[]":
                _ = ctx.state[key]
            case "del":
                del ctx.state[key]
            case _:
                getattr(ctx.state, use)(key)

    assert "str, bytes, int or a tuple of these" in await failure(call, base)


@pytest.mark.parametrize("key", KEYS)
async def test_no_key_stops_the_partition(key: Any) -> None:
    run, found = await results(lambda ctx: ctx.state.set(key, 1), RecordHandler)
    assert (list(found.letters), state(run)) == ([101], {"sum": 4})


TIMES: list[dict[str, Any]] = [
    {"at": None},
    {"at": datetime(2026, 1, 1)},  # noqa: DTZ001
    {"at": 1.5},
    {"at": "noon"},
    {"after": -1},
    {"after": timedelta(seconds=-1)},
    {"after": float("nan")},
    {"after": float("inf")},
    {"after": 1e300},
    {"after": MOST_SECONDS + 1},
    {"after": "1h"},
    {"after": timedelta.max},
]


@pytest.mark.parametrize("time", TIMES, ids=map(str, TIMES))
async def test_a_time_that_is_no_time_fails_its_record(time: dict[str, Any]) -> None:
    assert "a datetime with a zone (stream time), or after" in await failure(lambda ctx: ctx.wake("a", **time))


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 10**12, 10**400, "30m", True, timedelta(1), [1]])
async def test_a_time_to_live_that_is_none_fails_its_record(ttl: Any) -> None:
    assert "more than 0 and at most 3,162,240,000" in await failure(lambda ctx: ctx.state.set("a", 1, ttl=ttl))


class Color(Enum):
    RED = 1


@dataclass
class Point:
    x: int


NO_VALUES: list[tuple[Any, str]] = [
    (datetime(2026, 1, 1), "datetime without a zone"),  # noqa: DTZ001
    (date(2026, 1, 1), "date"),
    (Decimal("1.5"), "Decimal"),
    ({1, 2}, "set"),
    (frozenset(), "frozenset"),
    ((1, 2), "tuple"),
    (bytearray(b"a"), "bytearray"),
    (timedelta(1), "timedelta"),
    (UUID(int=1), "UUID"),
    (Color.RED, "Color"),
    (Point(1), "Point"),
    (Session(1), "Session"),
    (object(), "object"),
    ({"a": [1, {"b": Decimal(1)}]}, "Decimal"),
    ({("a", 1): 1}, "tuple"),
    ({NOON: 1}, "datetime"),
    ([1, None, (2,)], "tuple"),
]


@pytest.mark.parametrize(("value", "kind"), NO_VALUES, ids=[kind for _, kind in NO_VALUES])
async def test_a_value_that_would_change_its_type_fails_its_record(value: Any, kind: str) -> None:
    message = await failure(lambda ctx: ctx.state.set("a", value))
    assert f"the value of 'a' has a {kind} in it" in message


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "\ud800", {"a": "\ud800"}, [10**30]])
async def test_a_value_that_msgpack_cannot_hold_fails_its_record(value: Any) -> None:
    assert "the value of 'a' cannot be stored" in await failure(lambda ctx: ctx.state.set("a", value))


async def test_a_value_nested_without_end_fails_its_record() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    assert "cannot be stored" in await failure(lambda ctx: ctx.state.set("a", value))


@pytest.mark.parametrize("more", [(), (object(),)])
async def test_a_value_that_contains_itself_fails_its_record(more: Any) -> None:
    value: list[Any] = [*more]
    value.append({"a": value})
    await failure(lambda ctx: ctx.state.set("a", value))


VALUES = [
    None, True, 1, -(2**63), 2**64 - 1, 1.5, float("inf"), "text", b"bytes", NOON, [1, [None]], {"a": {"b": [NOON]}},
    {1: 2, b"k": 3, None: 4, 1.5: 5, False: 6},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=map(str, VALUES))
async def test_plain_values_come_back_as_they_were(value: Any) -> None:
    def use(ctx: PartitionContext) -> None:
        ctx.state.set("a", value)
        again = ctx.state["a"]
        assert (type(again), again) == (type(value), value)
        ctx.state.delete("a")

    _, found = await results(use, RecordHandler)
    assert not found.letters


class Level(IntEnum):
    LOW = 1


class Name(StrEnum):
    A = "a"


class Pair(NamedTuple):
    left: Any
    right: Any = None


class Items(list[Any]):
    """A list of its own type."""


CHANGED: list[Any] = [
    {1}, Decimal(1), (1,), {"a": (1,)}, datetime(2026, 1, 1),  # noqa: DTZ001
    Level.LOW, Name.A, [Level.LOW], {"a": {"b": Name.A}}, {Level.LOW: 1}, {Name.A: 2},
    Counter("ab"), defaultdict(int, a=1), OrderedDict(a=1), Items([1]), Pair(1), bytearray(b"a"), UUID(int=1), Point(1),
]  # fmt: skip


@pytest.mark.parametrize("note", CHANGED)
async def test_an_undeclared_part_that_would_change_its_type_fails_its_record(note: Any) -> None:
    traits: Any = {"State": {"": Session, "counts": int}}
    assert "declare the type" in await failure(lambda ctx: ctx.state.set("a", Session(1, note)), **traits)


class Bare(msgspec.Struct):
    """Containers of items without declared types, some of types that JSON lacks."""

    items: set = msgspec.field(default_factory=set)  # type: ignore[type-arg]
    pair: tuple = ()  # type: ignore[type-arg]
    names: dict = msgspec.field(default_factory=dict)  # type: ignore[type-arg]
    level: Level = Level.LOW
    number: int = 0
    ratio: float = 0.0
    floats: set[float] = msgspec.field(default_factory=set)
    groups: set[frozenset[int]] = msgspec.field(default_factory=set)
    decimal: Decimal = Decimal(0)
    point: Point | None = None
    missing: int | msgspec.UnsetType = msgspec.UNSET
    counts: dict[str, int] = msgspec.field(default_factory=dict)


@dataclass
class Loose:
    note: Any


@define
class Attributed:
    note: Any


BARE_CHANGED = [
    Bare(items={Level.LOW}), Bare(items={Pair(1)}), Bare(items={Decimal(1), 2}), Bare(pair=(Level.LOW,)),
    Bare(names={Level.LOW: 1}), Bare(number=Level.LOW), Bare(counts=Counter("ab")), Bare(ratio=2**60 + 1),
]  # fmt: skip


@pytest.mark.parametrize("value", [*BARE_CHANGED, Loose(Level.LOW), Attributed([Counter("a")])])
async def test_an_item_that_would_change_fails_its_record(value: Any) -> None:
    traits: Any = {"State": {"": type(value), "counts": int}}
    assert "would not come back as it is" in await failure(lambda ctx: ctx.state.set("a", value), **traits)


NAN = float("nan")
BARE_KEPT = [
    Bare(floats={NAN, 1.0, -0.0}), Bare(items={NAN, "a", None, (1, NAN)}), Bare(names={NAN: NAN}), Bare(ratio=3),
    Bare(groups={frozenset({1, 33}), frozenset({33, 65, 1})}), Bare(decimal=Decimal("NaN")),
    Bare(decimal=Decimal("sNaN")), Bare(level=Level.LOW, point=Point(2)), Bare(missing=msgspec.UNSET),
]  # fmt: skip


@pytest.mark.parametrize(
    "value", [*(Session(1, note) for note in (NAN, [NAN], {"a": 1}, NOON, None)), *BARE_KEPT, Loose([NAN])]
)
async def test_a_declared_value_that_is_kept_is_accepted(value: Any) -> None:
    _, found = await results(
        lambda ctx: ctx.state.set("a", value), RecordHandler, State={"": type(value), "counts": int}
    )
    assert not found.letters


DECLARED: list[tuple[Use, str]] = [
    (lambda ctx: ctx.state("session").set("a", {"clicks": 1}), "is a dict, and State is Session"),
    (lambda ctx: ctx.state("session").set("a", None), "is a NoneType, and State is Session"),
    (lambda ctx: ctx.state("other").get("a"), "State declares 'counts', 'session'"),
    (lambda ctx: ctx.state(None), "the name of a state is a str"),  # type: ignore[arg-type]
    (lambda ctx: ctx.state(TIMERS), "use ctx.wake and ctx.cancel_wake"),
]


@pytest.mark.parametrize(("use", "text"), DECLARED, ids=[text for _, text in DECLARED])
async def test_a_name_or_type_that_is_not_declared_fails_its_record(use: Use, text: str) -> None:
    assert text in await failure(use, State={"session": Session, "counts": int})


@pytest.mark.parametrize("keys", [pa.array([None, "a"]), pa.nulls(1), pa.array([1.5])])
async def test_a_null_key_in_a_join_fails_its_record(keys: pa.Array) -> None:
    table = pa.table({"k": keys})
    traits: Any = {"State": {"session": Session, "counts": int}}
    assert "key column 'k'" in await failure(lambda ctx: ctx.state("counts").join(table, on="k"), **traits)


async def test_a_time_to_live_of_the_class_is_at_most_a_hundred_years() -> None:
    class Long(RecordHandler):
        state_ttl = "4000000d"

        def process_record(self, record: Record, ctx: PartitionContext) -> None:
            ctx.state.set("a", 1)

    with pytest.raises(errors.HandlerDefinitionError, match="state_ttl = '4000000d': seconds, more than 0 and at most"):
        Run(Long())
