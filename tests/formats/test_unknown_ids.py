"""Values with schema ids that the registry does not know: it is asked seldom, and new schemas are still found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, cast

import anyio
import pyarrow as pa
import pytest

from actorproc.errors import DecodeError, SchemaError, SourceError
from actorproc.formats.avro.registry_format import AvroFormat
from actorproc.formats.registry.client import RegistrySchema, SchemaRegistry
from actorproc.formats.registry.decoder import AT_ONCE, RegistryDecoder
from actorproc.formats.registry.unknown_ids import MOST, PERIOD, REFUSED_FOR
from actorproc.runtime.clock import Clock
from tests.formats.samples import AVRO_TEXT, avro_value, handlers, process
from tests.formats.serialized import framed
from tests.partition.running import letters


class Time(Clock):
    """A clock that only the test moves."""

    def __init__(self) -> None:
        super().__init__(1)
        self.time = 1000.0

    def monotonic(self) -> float:
        return self.time


class Fake:
    """A registry that knows some ids. `busy`: the most requests at once."""

    url = "http://registry"

    def __init__(self, known: Iterable[int] = (), text: str = AVRO_TEXT) -> None:
        self.known = set(known)
        self.text = text
        self.asked: list[int] = []
        self.busy = self._now = 0
        self.answer: Callable[[int], Any] = lambda number: None

    async def schema(self, number: int) -> RegistrySchema | None:
        self.asked.append(number)
        self._now += 1
        self.busy = max(self.busy, self._now)
        try:
            await anyio.sleep(0)
            self.answer(number)
        finally:
            self._now -= 1
        return RegistrySchema(number, "AVRO", self.text) if number in self.known else None

    async def version(self, subject: str, version: int | None) -> RegistrySchema:
        return RegistrySchema(3, "AVRO", self.text)


def decoder(registry: Fake, clock: Clock | None = None) -> RegistryDecoder:
    return RegistryDecoder(cast(SchemaRegistry, registry), AvroFormat(), clock=clock or Time())


def values(*ids: int) -> pa.Array:
    return pa.array([framed(number, avro_value(number % 1000)) for number in ids], pa.binary())


def reason(made: RegistryDecoder, number: int) -> str:
    with pytest.raises(DecodeError) as error:
        made.values().parse(framed(number, b""))
    return str(error.value)


async def test_a_storm_of_unknown_ids_asks_seldom_and_several_at_once() -> None:
    registry = Fake({7})
    made = decoder(registry)
    for start in range(100, 3100, 500):
        await made.prepare(values(*range(start, start + 500), 7, 7))
    assert len(registry.asked) == len(set(registry.asked)) == MOST + 1
    assert registry.busy == AT_ONCE
    assert made.values().parse(framed(7, avro_value(5)))["n"] == 5
    assert reason(made, 100) == "schema id 100 is not in the registry http://registry"
    assert reason(made, 3000).startswith("schema id 3000 was not looked up: the registry http://registry did not know")


def test_a_batch_of_different_ids_takes_time_in_proportion_to_its_size() -> None:
    """Seconds. Something that looks at all values for each id takes over 6."""
    made, given = decoder(Fake()), values(*range(1, 150_001))
    began = time.process_time()
    groups, errors = made.split(given)
    assert time.process_time() - began < 4
    assert not groups
    assert list(errors) == list(range(150_000))


def test_values_of_an_id_keep_their_order() -> None:
    made = decoder(Fake())
    _, errors = made.split(values(7, 5, 7, 5, 6))
    assert [str(errors[at])[:11] for at in range(5)] == [f"schema id {number}" for number in (7, 5, 7, 5, 6)]


async def test_an_unknown_id_is_asked_again_after_a_while() -> None:
    registry, clock = Fake(), Time()
    made = decoder(registry, clock)
    for seconds in (0, 1, REFUSED_FOR - 2):
        clock.time += seconds
        await made.prepare(values(5))
    assert registry.asked == [5]
    registry.known.add(5)
    clock.time += 2
    await made.prepare(values(5))
    assert registry.asked == [5, 5]
    assert made.values().parse(framed(5, avro_value(1)))["n"] == 1


async def test_a_new_id_is_found_in_a_storm_once_the_registry_may_be_asked_again() -> None:
    registry, clock = Fake({9_000}), Time()
    made = decoder(registry, clock)
    await made.prepare(values(*range(1, MOST + 50)))
    await made.prepare(values(9_000, 9_000))
    assert "was not looked up" in reason(made, 9_000)
    clock.time += PERIOD
    await made.prepare(values(*range(10_000, 10_000 + MOST + 50), 9_000, 9_000))
    assert registry.asked[MOST] == 9_000, "the id of most records comes first"
    assert made.values().parse(framed(9_000, avro_value(1)))["n"] == 1


async def test_ids_that_the_registry_knows_have_no_limit() -> None:
    known = range(1, 3 * MOST)
    registry = Fake(known)
    made = decoder(registry)
    await made.prepare(values(*known))
    assert sorted(registry.asked) == list(known)
    table, errors = made.columns(pa.schema([("n", pa.int64())])).parse(values(*known), pa.array(known))
    assert (table.num_rows, errors) == (len(known), {})


@pytest.mark.parametrize("number", [0, 2**31, 2**32 - 1])
async def test_an_id_that_none_can_be_is_never_asked(number: int) -> None:
    """Confluent's registry would answer 404, as to a wrong URL, and the partition would wait for ever."""
    registry = Fake()
    made = decoder(registry)
    await made.prepare(values(number))
    assert registry.asked == []
    assert reason(made, number) == f"schema id {number} cannot be one: ids go from 1 to 2147483647"


async def test_partitions_ask_once_for_the_same_id() -> None:
    registry = Fake({3})
    made = decoder(registry)
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(made.prepare, values(3, 4))
    assert sorted(registry.asked) == [3, 4]


async def test_partitions_share_the_failure_of_a_registry_that_is_away() -> None:
    registry = Fake({3})
    made = decoder(registry)
    failures: list[SourceError] = []

    def away(number: int) -> None:
        raise SourceError("away")

    registry.answer = away

    async def prepare() -> None:
        try:
            await made.prepare(values(3))
        except SourceError as error:
            failures.append(error)

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(prepare)
    assert (len(registry.asked), len(failures)) == (1, 20)
    registry.answer = lambda number: None
    await made.prepare(values(3))
    assert made.values().parse(framed(3, avro_value(1)))["n"] == 1


async def test_a_cancelled_partition_leaves_the_lookup_to_the_next() -> None:
    registry = Fake({3})
    made = decoder(registry)
    async with anyio.create_task_group() as group:
        group.start_soon(made.prepare, values(3))
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    await made.prepare(values(3))
    assert made.values().parse(framed(3, avro_value(1)))["n"] == 1


@pytest.mark.parametrize("error", [RecursionError("deep"), KeyError("x"), BaseException("panic"), MemoryError()])
async def test_a_schema_that_breaks_its_compiler_is_the_reason_of_its_records(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: AvroFormat, schema: RegistrySchema, reader: object) -> Any:
        if schema.id == 3:
            raise error
        return usual(self, schema, None)

    usual = AvroFormat.decoder
    monkeypatch.setattr(AvroFormat, "decoder", broken)
    made = decoder(Fake({3, 4}))
    given = values(3, 4, 3)
    await made.prepare(given)
    outcome = await process(handlers()["columns"], made, given.to_pylist())
    assert [table["n"].to_pylist() for table in outcome.tables] == [[4]]
    assert {letter["error"]["type"] for letter in letters(outcome).values()} == {"DecodeError"}
    assert len(outcome.letters) == 2
    assert reason(made, 3).startswith(f"schema id 3 cannot be used: {type(error).__name__}")


async def test_a_full_disk_is_no_fault_of_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: AvroFormat, schema: RegistrySchema, reader: object) -> Any:
        raise OSError(28, "No space left on device")

    made = decoder(Fake({3}))
    with monkeypatch.context() as patched:
        patched.setattr(AvroFormat, "decoder", full)
        with pytest.raises(SourceError, match="schema id 3 cannot be compiled now: OSError"):
            await made.prepare(values(3))
    await made.prepare(values(3))
    assert made.values().parse(framed(3, avro_value(1)))["n"] == 1


@pytest.mark.parametrize("error", [KeyError("precision"), RecursionError("deep"), BaseException("panic")])
async def test_a_subject_that_breaks_its_compiler_is_refused_in_one_line(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: AvroFormat, schema: RegistrySchema) -> Any:
        raise error

    monkeypatch.setattr(AvroFormat, "columns", broken)
    with pytest.raises(
        SchemaError, match=f"output_schema = 'registry:orders': schema id 3 has no columns: {type(error).__name__}"
    ):
        await decoder(Fake({3})).output_schema("orders")


class Client:
    """In place of confluent-kafka's client: each schema refers to the next one, and the last one to `last`."""

    def __init__(self, count: int, last: int) -> None:
        self.count, self.last = count, last
        self.requests = 0

    def get_schema(self, number: int, fmt: str) -> Any:
        return self._schema(0)

    def get_version(self, subject: str, version: int, deleted: bool, fmt: str) -> Any:
        self.requests += 1
        found = type("Found", (), {})()
        found.schema = self._schema(int(subject))
        return found

    def _schema(self, at: int) -> Any:
        following = at + 1 if at + 1 < self.count else self.last
        named = type("Reference", (), {"name": f"s{following}", "subject": str(following), "version": 1})
        return type("Schema", (), {"references": [named], "schema_type": "AVRO", "schema_str": '"string"'})


@pytest.mark.parametrize(("count", "last"), [(5, 1), (1, 0), (10_000, 1)])
async def test_references_that_lead_back_or_on_and_on_end(count: int, last: int) -> None:
    registry = SchemaRegistry("http://127.0.0.1:9")
    registry._client = client = cast(Any, Client(count, last))
    made = RegistryDecoder(registry, AvroFormat())
    await made.prepare(values(3))
    assert "references, or they lead back to it" in reason(made, 3)
    assert client.requests <= 200
