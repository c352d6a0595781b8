"""A processor's output as the next one's source: each row once, in order, despite trims and late files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import orjson
import pyarrow as pa
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Settings
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.admin.retained import RetainedOutput
from actorproc.admin.trim import trim as trim_by_rule
from actorproc.counts import Counts
from actorproc.errors import SourceError, UsageError
from actorproc.group.membership import GroupDocument
from actorproc.output.chain import Commit, encode_commit
from actorproc.output.checkpoint import Checkpoint
from actorproc.records import Cursor
from actorproc.retention.readers import decide, read_registry
from actorproc.rows.ddl import schema_to_ddl
from actorproc.rows.json_values import plain_rows, rows_to_json, to_json
from actorproc.rows.output_schema import output_schema, parse_schema
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import current_loop, run
from actorproc.sources import LogSource, OutputSource, open_source
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store
from actorproc.stores.memory import MemoryStore
from tests.admin.conftest import SETTINGS, Later, Place
from tests.admin.conftest import fleet as fleet
from tests.admin.conftest import place as place
from tests.fragile import Fate, Fragile
from tests.output.test_compaction import compact, delete_originals
from tests.spark.committing import QUICK, Fleet, Numbers

LAYOUT = ProcessorLayout("numbers")


class Twice(PartitionHandler):
    """Two rows for each record, with the sequence of its upstream record."""

    output_schema = "n long, upstream string, copy int"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            row = {"n": record.json()["n"], "upstream": dict(record.headers)["actorproc-sequence"].decode()}
            ctx.emit_many(record, [row | {"copy": copy} for copy in range(2)])


class Sums(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": record.json()["n"] + record.json()["copy"]})


@pytest.fixture
def store() -> Store:
    return Store(MemoryStore())


async def rows(store: Store, name: str) -> list[tuple[str, int, dict[str, Any]]]:
    """(partition, sequence, value) of each record that a next processor would see."""
    source = OutputSource(store, name)
    await source.open()
    found = []
    for partition in await source.partitions():
        for batch, _ in await chunks(source, partition, await source.start(partition, "earliest")):
            found += [(partition, record.sequence, record.json()) for record in batch]
    return found


async def chunks(source: OutputSource, partition: str, position: str) -> list[tuple[Batch, str]]:
    """(batch, next position) from `position` up to the end as it is now."""
    found = []
    async with aclosing(source.read(partition, position)) as reading:
        async for chunk in reading:
            if not len(chunk.batch):
                break
            found.append((chunk.batch, chunk.next))
    return found


async def run_to_the_end(handler: type[PartitionHandler], upstream: str, store: Store, **how: Any) -> None:
    source = OutputSource(store, upstream)
    processor = Processor(handler, source=source, container=store, host="b", **{**QUICK, **how})
    await processor.run(until_end=True)


async def test_a_chain_of_processors_keeps_partitions_order_and_each_row_once(store: Store) -> None:
    fleet = Fleet(store)
    await fleet.commit(p0=30, p1=12)
    await run_to_the_end(Twice, "numbers", store)
    await run_to_the_end(Sums, "Twice", store)
    await fleet.commit(p0=5, p1=40, p2=3)  # a partition appears
    await run_to_the_end(Twice, "numbers", store)
    await run_to_the_end(Sums, "Twice", store)
    await run_to_the_end(Sums, "Twice", store)
    expected = {p: sorted(n for q, n, _ in fleet.expected() if p == q) for p in "012"}
    twice, sums = await rows(store, "Twice"), await rows(store, "Sums")
    for partition, numbers in expected.items():
        copies = [(n, copy) for n in numbers for copy in range(2)]
        assert [(s, r["n"], r["copy"]) for p, s, r in twice if p == partition] == [
            (s, n, copy) for s, (n, copy) in enumerate(copies)
        ]
        assert [r["upstream"] for p, _, r in twice if p == partition] == [str(n) for n, _ in copies]
        assert [r["n"] for p, _, r in sums if p == partition] == [n + copy for n, copy in copies]


async def test_a_start_at_the_time_of_a_record_includes_it(store: Store) -> None:
    fleet = Fleet(store)
    for _ in range(12):  # a stored time has seconds, a record's has whole microseconds, so it may be later
        await fleet.commit(p0=1)
    source = OutputSource(store, "numbers")
    await source.open()
    everything = await chunks(source, "0", await source.start("0", "earliest"))
    records = [record for batch, _ in everything for record in batch]
    assert len(records) == 11, "one of the twelve is poison"
    for record in records:
        assert record.timestamp is not None
        rest = await chunks(source, "0", await source.start("0", record.timestamp))
        assert rest[0][0].first <= record.sequence


async def test_reading_from_any_position_gives_the_rest_with_the_same_sequences(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actorproc.sources.output_source._CHUNK_ROWS", 4)
    await Fleet(store).commit(p0=33)
    source = OutputSource(store, "numbers")
    first = await source.start("0", "earliest")
    assert source.sequence_before("0", first) == -1
    found = await chunks(source, "0", first)
    whole = [(record.sequence, record.value) for batch, _ in found for record in batch]
    assert [sequence for sequence, _ in whole] == list(range(30))
    assert len(found) > 8
    for batch, position in found:
        assert source.sequence_before("0", position) == batch.last
        rest = [(r.sequence, r.value) for b, _ in await chunks(source, "0", position) for r in b]
        assert rest == whole[batch.last + 1 :]
    assert found[-1][1] == (await source.end("0")).position == await source.start("0", "latest")
    with pytest.raises(SourceError, match="'12' is not a position in partition 0 of an output"):
        source.sequence_before("0", "12")


async def test_a_commit_of_dead_letters_only_has_no_records(store: Store) -> None:
    fleet = Fleet(store, {"commit_rows": 1, "max_batch_records": 1})
    await fleet.commit(p0=8)  # the last is poison: a commit without rows
    source = OutputSource(store, "numbers")
    end = await source.end("0")
    assert (end.position, end.sequence) == ("8+7", 6)
    assert [n for _, n, _ in await rows(store, "numbers")] == list(range(7))
    await run_to_the_end(Twice, "numbers", store)
    assert len(await rows(store, "Twice")) == 14


async def test_a_waiting_reader_sees_later_commits(store: Store) -> None:
    fleet = Fleet(store)
    await fleet.commit(p0=10)
    source = OutputSource(store, "numbers", settings=Settings.load(poll_interval=0.01))
    seen: list[int] = []

    async def read() -> None:
        async with aclosing(source.read("0", "0+0")) as reading:
            async for chunk in reading:
                seen.extend(chunk.batch.sequences)
                if len(seen) >= 18:
                    return

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            while len(seen) < 9:
                await anyio.sleep(0.01)
            await fleet.commit(p0=10)
    await source.close()
    assert seen == list(range(18))


async def trim(store: Store, partition: str, lowest: int) -> None:
    await store.put(LAYOUT.boundary(partition), b'{"version": 1, "lowest": %d, "put_id": ""}' % lowest)
    for number in range(lowest):
        await store.delete(LAYOUT.output_file(partition, number))


async def test_trimmed_unread_commits_are_named(store: Store) -> None:
    await Fleet(store).commit(p0=40)
    before = await rows(store, "numbers")
    source = OutputSource(store, "numbers")
    late = await store.get(LAYOUT.output_file("0", 1))
    assert late is not None
    await trim(store, "0", 2)
    assert await rows(store, "numbers") == before[18:]  # sequences stay the same
    for position in ("0+0", "1+9"):
        with pytest.raises(
            SourceError, match=rf"partition 0 of numbers .* from commit {position[0]} on.*is 2: .*trimmed"
        ):
            await chunks(source, "0", position)
    await store.put(LAYOUT.output_file("0", 1), late.body)  # lands late: void
    with pytest.raises(SourceError, match="output below 2 was trimmed"):
        await chunks(source, "0", "1+9")
    assert await rows(store, "numbers") == before[18:]


async def test_a_late_reader_starts_at_a_decided_trim_boundary(
    store: Store,
) -> None:
    await Fleet(store).commit(p0=40)
    assert await decide(store, LAYOUT.readers, await read_registry(store, LAYOUT.readers), {"0": 2})
    source = OutputSource(store, "numbers")
    await source.open()
    await source.register("Twice", store.url)
    with pytest.raises(SourceError, match=r"from commit 1 on.*is 2: output below 2 was trimmed"):
        await chunks(source, "0", "1+9")
    assert await source.start("0", "earliest") == "2+18"
    assert len(await chunks(source, "0", "2+18")) == 2


async def test_files_that_were_deleted_by_hand_are_named(store: Store) -> None:
    await Fleet(store).commit(p0=40)
    await store.delete(LAYOUT.output_file("0", 1))
    with pytest.raises(SourceError, match=r"from commit 1 on.*that can be read is 2: .*deleted by hand"):
        await chunks(OutputSource(store, "numbers"), "0", "0+0")


async def read_all(source: OutputSource, position: str) -> list[tuple[int, bytes | None, datetime | None]]:
    found = await chunks(source, "0", position)
    return [(r.sequence, r.value, r.timestamp) for batch, _ in found for r in batch]


async def test_compacted_output_is_read_from_any_position(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorproc.sources.output_source._CHUNK_ROWS", 4)
    await Fleet(store).commit(p0=60)
    source = OutputSource(store, "numbers")
    whole = await read_all(source, "0+0")
    positions = ["0+0", *(position for _, position in await chunks(source, "0", "0+0"))]
    async with aclosing(source.read("0", "0+0")) as reading:
        standing = [await anext(reading) for _ in range(3)]  # in the second file
        assert standing[-1].next.startswith("1+")
        assert len(await compact(store)) == 1
        assert await delete_originals(store) > 2
        for position in positions:
            assert await read_all(source, position) == whole[source.sequence_before("0", position) + 1 :]
        while len((standing := [*standing, await anext(reading)])[-1].batch):
            pass
    assert [r.sequence for chunk in standing for r in chunk.batch] == [sequence for sequence, _, _ in whole]

    middle = whole[20][2]
    assert middle is not None
    at = await source.start("0", middle)
    assert (await read_all(source, at))[0] == next(found for found in whole if (found[2] or middle) >= middle)
    assert await source.start("0", "earliest") == "0+0"
    await store.delete(next(e.key for e in (await store.list("numbers/compacted/")).entries))
    with pytest.raises(SourceError, match="deleted by hand"):
        await chunks(source, "0", "0+0")


async def test_a_trim_keeps_files_that_a_downstream_has_not_read(place: Place, fleet: Fleet) -> None:
    store = place.store
    await fleet.commit(p0=40)
    await run_to_the_end(Twice, "numbers", store)
    await fleet.commit(p0=40)
    place.wait(7200)
    kept = RetainedOutput(store, LAYOUT)
    assert list((await read_registry(store, LAYOUT.readers)).readers) == ["Twice"]
    await trim_by_rule(kept, SETTINGS)
    assert min(await place.numbers(LAYOUT.output_dir("0"))) == 4
    await run_to_the_end(Twice, "numbers", store)
    assert len(await rows(store, "Twice")) == 2 * 72
    await trim_by_rule(kept, SETTINGS)
    assert await place.numbers(LAYOUT.output_dir("0")) == [7]
    with pytest.raises(SourceError, match="output below 7 was trimmed"):
        await chunks(OutputSource(store, "numbers"), "0", "3+27")
    await run_to_the_end(Twice, "numbers", store, name="late")  # a new reader begins with the oldest kept file
    assert len(await rows(store, "late")) == 2 * 9


async def commit_file(store: Store, number: int, before: int, count: int, time: float) -> None:
    """Commit `count` rows of a processor named numbers, as its hosts do."""
    schema = output_schema(parse_schema("n long"))
    table = pa.table([list(range(before, before + count)), list(range(before, before + count))], schema=schema)
    commit = Commit(
        put_id=str(number),
        host="a",
        epoch=1,
        first=Cursor(""),
        next=Cursor("", before + count - 1),
        totals=Counts(count, before + count),
        time=time,
        rows=count,
    )
    body, _ = encode_commit(table, commit, b"")
    await store.put(LAYOUT.output_file("0", number), body)


async def prepared(store: Store, times: Sequence[float]) -> None:
    """Files of ten rows, committed at `times`."""
    await store.put(LAYOUT.schema, orjson.dumps({"version": 1, "ddl": schema_to_ddl(parse_schema("n long"))}))
    await store.put(LAYOUT.checkpoint("0"), Checkpoint(1, 0, Cursor(""), Counts()).to_json())
    for number, time in enumerate(times):
        await commit_file(store, number, 10 * number, 10, time)


async def test_a_start_by_time_is_the_first_file_committed_since(store: Store) -> None:
    await prepared(store, [1000.0 * n for n in range(20)])
    source = OutputSource(store, "numbers")
    for time, position in (
        (-5, "0+0"),
        (0, "0+0"),
        (1, "1+10"),
        (7000, "7+70"),
        (18_500, "19+190"),
        (19_001, "20+200"),
    ):
        assert await source.start("0", datetime.fromtimestamp(time, UTC)) == position
    [(batch, _)] = await chunks(source, "0", "19+190")
    assert batch.timestamps == [datetime.fromtimestamp(19_000, UTC)] * 10
    assert batch.keys == [None] * 10


async def test_a_start_by_time_skips_no_commit_if_host_clocks_disagree(
    store: Store,
) -> None:
    fleet, clock = Fleet(store), Later()
    began = clock.now()
    for clock.ahead in (0, 600, -7200, 1800, 2400):  # one is two hours slow
        fleet.stream.add("0", 10)
        how: dict[str, Any] = {"name": "numbers", "source": fleet.stream, "container": store, "clock": clock, **QUICK}
        await Processor(Numbers, **how).run(until_end=True)
    source = OutputSource(store, "numbers")
    committed = await read_all(source, "0+0")
    assert len(committed) == 45
    for after in range(-9000, 3000, 300):
        time = began + timedelta(seconds=after)
        found = await read_all(source, await source.start("0", time))
        assert found == [record for record in committed if record[2] is not None and record[2] >= time], after


def test_an_idle_partition_costs_a_request_each_quarter_of_a_minute() -> None:
    async def main() -> None:
        clock = VirtualClock("t")
        truth = MemoryStore(clock=clock)
        store = Store(truth, clock=clock)
        await prepared(store, [0.0] * 3)
        source = OutputSource(store, "numbers", settings=Settings(), clock=clock)
        seen: list[tuple[int, float]] = []

        async def read() -> None:
            async for chunk in source.read("0", "0+0"):
                seen.extend((n, current_loop().now) for n in chunk.batch.sequences)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await clock.sleep(600)
            store.requests.clear()
            await clock.sleep(3600)
            assert sum(store.requests.values()) <= 3600 / 15 * 1.1 + 2 * 3600 / 300
            committed = {}
            for number in range(3, 203):  # a busy one: a file each five seconds
                await commit_file(store, number, 10 * number, 10, 0.0)
                committed[number] = current_loop().now
                await clock.sleep(5)
            await clock.sleep(5)
            tasks.cancel_scope.cancel()
        assert [n for n, _ in seen] == list(range(2030))
        delays = [seen[10 * number][1] - at for number, at in committed.items()]
        assert max(delays) < 16.5
        assert max(delays[10:]) < 4
        assert store.requests["get"] < 240 * 1.1 + 200 * 6  # per file: itself, the boundary, and empty reads

    run(main())


async def test_status_knows_the_lag(store: Store) -> None:
    await Fleet(store).commit(p0=30, p1=10)
    source = OutputSource(store, "numbers")
    await source.open()

    async def lag() -> tuple[int | None, float | None]:
        found = await FleetWatch(store, ProcessorLayout("Twice"), 60).read_all(source)
        return found.lag, found.lag_seconds

    records, seconds = await lag()
    assert (records, seconds is not None and 0 < seconds < 300) == (27 + 9, True)
    await run_to_the_end(Twice, "numbers", store)
    assert await lag() == (0, 0)
    await Fleet(store).commit(p0=0)
    assert (await lag())[0] == 0


async def test_an_upstream_that_was_deleted_and_made_anew_is_refused(store: Store) -> None:
    await Fleet(store).commit(p0=30)
    await run_to_the_end(Twice, "numbers", store)
    for entry in (await store.list("numbers/")).entries:
        await store.delete(entry.key)
    await Fleet(store).commit(p0=30)
    with pytest.raises(UsageError, match="numbers is deleted and created again"):
        await run_to_the_end(Twice, "numbers", store)


async def test_an_upstream_recreated_while_it_is_read_stops_the_reader(store: Store) -> None:
    await Fleet(store).commit(p0=30)
    source = OutputSource(store, "numbers")
    await source.open()
    chunks = source.read("0", "0+0")
    position = ""
    while (chunk := await anext(chunks)).batch:
        position = chunk.next
    await chunks.aclose()
    for entry in (await store.list("numbers/")).entries:
        await store.delete(entry.key)
    await Fleet(store, {"max_batch_records": 5, "commit_rows": 1}).commit(p0=60)
    with pytest.raises(SourceError, match=r"partition 0 of .*numbers was replaced.*created again"):
        await anext(source.read("0", position))


async def test_a_host_that_dies_and_another_that_goes_on_repeat_nothing(store: Store) -> None:
    """The second host knows only the commits of the first."""
    await Fleet(store).commit(p0=60)
    truth = store.backend
    assert isinstance(truth, MemoryStore)
    for number in range(8, 40, 4):
        fragile = Store(Fragile(truth, Fate(number, "before")))
        with pytest.raises(BaseException):  # noqa: B017, PT011
            await run_to_the_end(Twice, "numbers", fragile)
    await run_to_the_end(Twice, "numbers", store)
    found = [(r["n"], r["copy"]) for _, _, r in await rows(store, "Twice")]
    assert found == [(n, copy) for n in range(60) if n % 10 != 7 for copy in range(2)]


def test_every_type_has_its_json_form() -> None:
    time = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    row = {
        "b": True,
        "i": 2**62,
        "f": 0.5,
        "nan": float("nan"),
        "s": 'grün"',
        "raw": b"\xff",
        "day": date(2026, 1, 2),
        "at": time,
        "local": time.replace(tzinfo=None),
        "amount": Decimal("12.345"),
        "list": [{"a": b"x", "t": time}],
        "map": [("k", 1)],
        "bytes": [(b"k", 1)],
    }
    schema = parse_schema(
        "b boolean, i long, f double, nan double, s string, raw binary, day date, at timestamp, local timestamp_ntz, "
        "amount decimal(20,3), list array<struct<a: binary, t: timestamp>>, map map<string, int>, "
        "bytes map<binary, int>"
    )
    batch = pa.RecordBatch.from_pylist([row, dict.fromkeys(row)], schema)
    full, empty = (orjson.loads(line) for line in rows_to_json(batch).to_pylist())
    assert empty == dict.fromkeys(row)
    assert full == {
        "b": True,
        "i": 2**62,
        "f": 0.5,
        "nan": None,
        "s": 'grün"',
        "raw": "/w==",
        "day": "2026-01-02",
        "at": "2026-01-02T03:04:05.678901Z",
        "local": "2026-01-02T03:04:05.678901",
        "amount": "12.345",
        "list": [{"a": "eA==", "t": "2026-01-02T03:04:05.678901Z"}],
        "map": {"k": 1},
        "bytes": {"aw==": 1},
    }


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("kind", "pairs", "shown"),
    [
        ("map<decimal(5,2), int>", [(Decimal("1.50"), 1)], {"1.50": 1}),
        ("map<date, int>", [(date(2026, 1, 2), 1)], {"2026-01-02": 1}),
        ("map<boolean, int>", [(True, 1), (False, 2)], {"true": 1, "false": 2}),
        ("map<double, int>", [(NAN, 1), (INFINITE, 2), (-INFINITE, 3)], {"NaN": 1, "Infinity": 2, "-Infinity": 3}),
        ("map<double, int>", [(0.0, 1), (-0.0, 2)], [{"key": 0.0, "value": 1}, {"key": -0.0, "value": 2}]),
        ("map<string, int>", [("a", 1), ("a", 2)], [{"key": "a", "value": 1}, {"key": "a", "value": 2}]),
        ("map<struct<raw: binary>, int>", [({"raw": b"k"}, 1)], [{"key": {"raw": "aw=="}, "value": 1}]),
        ("map<array<int>, int>", [([1, 2], 1)], [{"key": [1, 2], "value": 1}]),
        ("map<map<binary, int>, int>", [([(b"k", 1)], 2)], [{"key": {"aw==": 1}, "value": 2}]),
        ("map<string, map<binary, binary>>", [("a", [(b"k", b"v")]), ("b", None)], {"a": {"aw==": "dg=="}, "b": None}),
    ],
)
def test_a_map_is_an_object_or_entries_if_keys_share_a_text(
    kind: str, pairs: list[tuple[Any, Any]], shown: object
) -> None:
    schema = parse_schema(f"m {kind}, l array<{kind}>, s struct<m: {kind}, n: int>")
    batch = pa.RecordBatch.from_pylist(
        [{"m": pairs, "l": [pairs, None], "s": {"m": pairs, "n": 1}}, {"m": None, "l": [], "s": {"m": None, "n": 2}}],
        schema,
    )
    for lines in (rows_to_json(batch).to_pylist(), list(map(to_json, plain_rows(batch)))):
        assert [orjson.loads(line) for line in lines] == [
            {"m": shown, "l": [shown, None], "s": {"m": shown, "n": 1}},
            {"m": None, "l": [], "s": {"m": None, "n": 2}},
        ]


def test_an_empty_map_has_the_json_form_of_its_type() -> None:
    batch = pa.RecordBatch.from_pylist([{"m": [], "n": []}], parse_schema("m map<int, int>, n map<array<int>, int>"))
    assert plain_rows(batch) == [{"m": {}, "n": []}]


def test_urls_name_a_container_and_a_processor(tmp_path: Path) -> None:
    for url, shown in (
        (f"actorproc+file://{tmp_path}/state/Delays", f"actorproc+file://{tmp_path}/state/Delays"),
        ("actorproc+memory://x/Delays/", "actorproc+memory://x/Delays"),
        ("actorproc+s3://bucket/Delays", "actorproc+s3://bucket/Delays"),
        ("actorproc+s3://bucket/a/b/Delays", "actorproc+s3://bucket/a/b/Delays"),
    ):
        assert str(open_source(url)) == shown
    for url in ("actorproc+Delays", "actorproc+file://Delays", "actorproc+s3://", "actorproc+"):
        with pytest.raises(UsageError, match=r"actorproc.CONTAINER/PROCESSOR, such as"):
            open_source(url)
    with pytest.raises(UsageError, match="processor name 'De lays' is not usable"):
        open_source("actorproc+memory://x/De lays")
    with pytest.raises(UsageError, match="unknown scheme"):
        open_source("actorproc+kafka://x/Delays")


@pytest.mark.parametrize("source", [lambda place: OutputSource(place, "Delays"), LogSource])
def test_a_source_is_opened_by_text_path_or_store(source: Callable[[Any], LogSource | OutputSource]) -> None:
    assert source(Path("place")).url == source("place").url
    for wrong in (None, 7):
        with pytest.raises(UsageError, match=rf"^(container|log) = {wrong}: the URL or folder of"):
            source(wrong)


async def test_an_unknown_upstream_is_refused_with_the_known_ones(store: Store) -> None:
    for name in ("Big", "Orders"):
        await store.put(ProcessorLayout(name).group, GroupDocument.of().to_json())
    with pytest.raises(
        UsageError, match=r"no processor 'Order' at memory://.*: there are: Big, Orders. Check the name"
    ):
        await run_to_the_end(Twice, "Order", store)


async def test_a_processor_that_never_ran_and_the_own_output_are_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no processor 'numbers' at memory://.*: no processor has ever run there"):
        await run_to_the_end(Twice, "numbers", store)
    with pytest.raises(UsageError, match="Twice would read its own output"):
        Processor(Twice, source=f"actorproc+file://{tmp_path}/Twice", container=str(tmp_path))
    async with open_store(str(tmp_path)) as folder:
        await Fleet(folder).commit(p0=3)
    Processor(Twice, source=f"actorproc+file://{tmp_path}/numbers", container=str(tmp_path))
