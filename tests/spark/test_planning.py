"""The requests of a stream to the store, and the parts of its tasks. Without Spark."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from actorproc.config.settings import Settings
from actorproc.errors import SourceError, UsageError
from actorproc.produce.growth import grow_log
from actorproc.produce.producer import Producer
from actorproc.rows.output_schema import nullable, output_schema, parse_schema
from actorproc.spark.blocking_store import open_blocking
from actorproc.spark.data_source import plan_tasks
from actorproc.spark.dataset import Span
from actorproc.spark.options import ReadOptions, explicit_settings_as_options, parse_read_options, settings_as_options
from actorproc.spark.planning import (
    initial_numbers,
    latest_numbers,
    most_within,
    plan_batch,
    plan_micro_batch,
    split_into_tasks,
)
from actorproc.spark.stream_reader import StreamPlanner
from actorproc.spark.task_reader import read_spans
from actorproc.storage.backend import Listing
from actorproc.storage.listing import DataFile
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store
from actorproc.stores.memory import MemoryStore
from tests.spark.committing import Fleet, Numbers

LAYOUT = ProcessorLayout("numbers")


class Watched(MemoryStore):
    """Notes each listing, and leaves the keys in `unlisted` out, as a listing may that runs while they are created."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[tuple[str, str]] = []
        self.unlisted: set[str] = set()

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        self.listed.append((prefix, after))
        listing = await super().list(prefix, after)
        seen = [entry for entry in listing.entries if entry.key not in self.unlisted][:limit]
        return Listing(seen, listing.now)


@pytest.fixture
def backend() -> Watched:
    return Watched()


@pytest.fixture
def store(backend: Watched) -> Store:
    return Store(backend)


@pytest.fixture
async def fleet(store: Store) -> Fleet:
    fleet = Fleet(store)
    await fleet.commit(p0=50, p1=30)
    return fleet


def asked(**options: str) -> ReadOptions:
    return parse_read_options({"path": "anywhere", "name": "numbers", **options})


def numbers(spans: list[Span]) -> dict[str, list[int]]:
    return {span.partition: [file.number for file in span.files] for span in spans}


async def test_a_running_stream_notices_output_that_was_created_again(tmp_path: Path) -> None:
    url = str(tmp_path)
    await Fleet(url).commit(p0=30)
    with closing(StreamPlanner(asked(path=url, poll_interval="1ms"), output_schema(parse_schema("n long")))) as stream:
        at = await asyncio.to_thread(stream.latest_offset, None, limited=False)
        at = await asyncio.to_thread(stream.latest_offset, at, limited=False)
        assert at["next"] == {"0": 3}
        shutil.rmtree(tmp_path / "numbers")
        await Fleet(url).commit(p0=50)
        time.sleep(0.002)
        with pytest.raises(UsageError, match="as it was before it was deleted and created again"):
            await asyncio.to_thread(stream.latest_offset, at, limited=False)


async def test_a_trigger_lists_only_files_after_the_last_offset(store: Store, backend: Watched, fleet: Fleet) -> None:
    backend.listed.clear()
    end, _ = await latest_numbers(asked(), store, {"0": 4, "1": 3}, limited=True, target=None)
    assert end == {"0": 5, "1": 3}
    folders = {prefix: after for prefix, after in backend.listed if prefix.startswith(LAYOUT.output)}
    assert folders == {LAYOUT.output_dir(p): LAYOUT.output_file(p, n) for p, n in (("0", 3), ("1", 2))}


async def test_a_partition_that_appears_later_is_read_from_its_first_file(store: Store, fleet: Fleet) -> None:
    start = await initial_numbers(asked(), store)
    await fleet.commit(p2=20)
    end, _ = await latest_numbers(asked(), store, start, limited=True, target=None)
    assert end == {"0": 5, "1": 3, "2": 2}
    assert numbers(await plan_micro_batch(asked(), store, start, end))["2"] == [0, 1]


async def test_max_files_takes_files_of_all_partitions(store: Store, fleet: Fleet) -> None:
    request, at = asked(maxFilesPerTrigger="3"), {"0": 0, "1": 0}
    sizes = []
    while True:
        end, _ = await latest_numbers(request, store, at, limited=True, target=None)
        if end == at:
            break
        sizes.append(sum(end.values()) - sum(at.values()))
        at = end
    assert at == {"0": 5, "1": 3}
    assert sizes == [3, 3, 2]


async def test_max_rows_applies_to_whole_files(store: Store, fleet: Fleet) -> None:
    request = asked(maxRowsPerTrigger="40")
    end, seen = await latest_numbers(request, store, {}, limited=True, target=None)
    assert sum(end.values()) == 4  # files of nine rows each
    assert seen == {"0": 5, "1": 3}


async def test_counting_rows_takes_one_request_per_partition_if_all_fit(store: Store, fleet: Fleet) -> None:
    request, at = asked(maxRowsPerTrigger="1000"), {"0": 1, "1": 0, "2": 0}
    for p0, p1, first in ((40, 40, True), (10, 0, False), (30, 20, False)):
        await fleet.commit(p0=p0, p1=p1, p2=0)
        before = store.requests["get"]
        at, _ = await latest_numbers(request, store, at, limited=True, target=None)
        partitions = (p0 > 0) + (p1 > 0)
        assert store.requests["get"] - before == partitions + (2 if first else 0), "at first where it begins, too"
    assert at == {"0": 13, "1": 9, "2": 0}


async def test_rows_are_counted_in_few_steps_if_not_all_fits(store: Store, fleet: Fleet) -> None:
    await fleet.commit(p0=950, p1=970)
    request, at, taken = asked(maxRowsPerTrigger="450"), {"0": 0, "1": 0}, []
    store.requests.clear()
    while (end := (await latest_numbers(request, store, at, limited=True, target=None))[0]) != at:
        taken.append(sum(end.values()) - sum(at.values()))
        at = end
    assert taken == [50, 50, 50, 50]  # files of nine rows each
    assert store.requests["get"] <= 4 * 2 * 4


@pytest.mark.parametrize("sizes", [[1] * 500, [1] * 499 + [10**6], [10**6] + [1] * 499, [2**n for n in range(60)]])
async def test_the_greatest_number_within_a_limit_is_found(sizes: list[int]) -> None:
    asked: list[int] = []

    async def cost(count: int) -> int:
        asked.append(count)
        return sum(sizes[:count])

    for limit in (0, 1, 7, 250, 499, 10**6 - 1, 10**6, 10**6 + 17, sum(sizes)):
        asked.clear()
        found = await most_within(len(sizes), cost, limit)
        assert sum(sizes[:found]) <= limit
        assert found == len(sizes) or sum(sizes[: found + 1]) > limit
        assert len(asked) <= 20


async def test_a_file_with_more_rows_than_the_limit_is_taken_alone(store: Store, fleet: Fleet) -> None:
    end, _ = await latest_numbers(asked(maxRowsPerTrigger="1"), store, {}, limited=True, target=None)
    assert sum(end.values()) == 1


async def test_nothing_beyond_the_target_is_taken(store: Store, fleet: Fleet) -> None:
    end, _ = await latest_numbers(asked(), store, {"0": 1}, limited=True, target={"0": 3})
    assert end == {"0": 3, "1": 0}


async def test_a_file_that_a_listing_passes_over_is_read_all_the_same(
    store: Store, backend: Watched, fleet: Fleet
) -> None:
    backend.unlisted = {LAYOUT.output_file("0", 0), LAYOUT.output_file("1", 0)}
    spans = await plan_batch(asked(), store)
    assert [span.files[0][0] for span in spans] == [0, 0]


async def test_unread_trimmed_output_is_an_error_with_partition_and_numbers(store: Store, fleet: Fleet) -> None:
    await store.put(LAYOUT.boundary("0"), b'{"version": 1, "lowest": 3}')
    with pytest.raises(SourceError, match=r"partition 0 of output numbers.*number 2.*can be read is 3.*trimmed"):
        await plan_micro_batch(asked(), store, {"0": 2, "1": 0}, {"0": 5, "1": 3})
    assert numbers(await plan_micro_batch(asked(), store, {"0": 3, "1": 0}, {"0": 5, "1": 3})) == {
        "0": [3, 4],
        "1": [0, 1, 2],
    }


async def test_a_new_query_begins_at_the_boundary(store: Store, fleet: Fleet) -> None:
    await store.put(LAYOUT.boundary("0"), b'{"version": 1, "lowest": 3}')
    assert numbers(await plan_batch(asked(), store)) == {"0": [3, 4], "1": [0, 1, 2]}


async def test_files_deleted_by_hand_are_an_error_that_names_them(store: Store, fleet: Fleet) -> None:
    await store.delete(LAYOUT.output_file("0", 2))
    with pytest.raises(SourceError, match=r"number 2 is to be read next.*can be read is 3.*by hand"):
        await plan_micro_batch(asked(), store, {"0": 2}, {"0": 5})


async def test_a_start_sequence_skips_the_files_before_it(store: Store, fleet: Fleet) -> None:
    assert await initial_numbers(asked(startSequence="25"), store) == {"0": 2, "1": 2}
    assert await initial_numbers(asked(startSequence='{"1": 10}'), store) == {"0": 0, "1": 1}


async def test_a_start_sequence_beyond_the_end_skips_all_existing_files(store: Store, fleet: Fleet) -> None:
    request = asked(startSequence='{"0": 1000}')
    assert await initial_numbers(request, store) == {"0": 5, "1": 0}
    assert numbers(await plan_batch(request, store)) == {"1": [0, 1, 2]}
    await fleet.commit(p0=10)
    assert await latest_numbers(request, store, {"0": 5, "1": 3}, limited=False, target=None) == ({"0": 6, "1": 3},) * 2


async def test_a_partition_that_does_not_exist_is_refused_by_name(store: Store, fleet: Fleet) -> None:
    with pytest.raises(UsageError, match="no partition 7; there are: 0, 1"):
        await plan_batch(asked(partitions="0,7"), store)
    for way in (plan_batch, initial_numbers):
        for options in ({"partitions": "7"}, {"startSequence": '{"0": 3, "7": 1}'}):
            with pytest.raises(UsageError, match=r"output numbers at .* has no partition 7; there are: 0, 1"):
                await way(asked(**options), store)


class Nested(Numbers):
    output_schema = (
        "n long, sure long NOT NULL, legs array<struct<a: long, b: long NOT NULL>>, m map<string, struct<c: long>>"
    )

    def row(self, n: int) -> dict[str, Any]:
        return super().row(n) | {"sure": n, "legs": [{"a": None, "b": n}], "m": None}


async def test_nullable_columns_and_parts_are_refused_as_not_null(tmp_path: Path) -> None:
    await Fleet(str(tmp_path)).commit(Nested, p0=5)

    def look(columns: str, **options: str) -> None:
        assert plan_tasks(asked(path=str(tmp_path), **options), parse_schema(columns))

    for columns in ("sure long NOT NULL", "sure long", "legs array<struct<a: long, b: long>>", Nested.output_schema):
        await asyncio.to_thread(look, columns)
    for columns, parts in (
        ("n long NOT NULL", ["n"]),
        ("m map<string, struct<c: long>> NOT NULL, n long NOT NULL", ["m", "n"]),
        ("legs array<struct<a: long NOT NULL, b: long>>", ["legs.element.a"]),
        ("m map<string, struct<c: long NOT NULL>>", ["m.value.c"]),
    ):
        wrong = "; ".join(f"column {part!r} may be null, and is declared NOT NULL" for part in parts)
        with pytest.raises(UsageError, match=rf"numbers at .*: {re.escape(wrong)}\. There are: n, sure"):
            await asyncio.to_thread(look, columns)
    leg = parse_schema(Nested.output_schema).field("legs").type.value_type
    strict = pa.schema([("legs", pa.list_(pa.field("element", leg, nullable=False)))])
    with pytest.raises(UsageError, match=r"column 'legs\.element' may be null"):
        await asyncio.to_thread(plan_tasks, asked(path=str(tmp_path)), strict)
    with pytest.raises(UsageError, match="column 'value' may be null"):
        await asyncio.to_thread(
            plan_tasks,
            asked(path=str(tmp_path), kind="dead-letters"),
            pa.schema([pa.field("value", pa.binary(), False)]),
        )


@pytest.mark.parametrize("kind", ["output", "log", "dead-letters"])
async def test_columns_without_nulls_can_be_read_as_not_null_or_nullable(kind: str, tmp_path: Path) -> None:
    if kind == "log":
        async with Producer(str(tmp_path), partitions=1) as producer:
            await producer.send(b"1", headers=[("a", b"b")])
        request = parse_read_options({"path": str(tmp_path), "kind": kind})
    else:
        await Fleet(str(tmp_path)).commit(Nested, p0=9)
        request = asked(path=str(tmp_path), kind=kind)

    def read() -> None:
        with open_blocking(request.url, request.settings) as place:
            there = place.call(request.dataset.schema, place.store)
        for schema in (there, pa.schema(map(nullable, there))):
            (spans,) = plan_tasks(request, schema)
            assert [batch.schema for batch in read_spans(request, spans, schema)] == [schema]

    await asyncio.to_thread(read)


async def test_a_log_that_has_grown_is_read_whole_and_in_steps_of_one_file(tmp_path: Path) -> None:
    async with open_store(str(tmp_path)) as store:
        async with Producer(store, partitions=2, linger=0) as producer:
            for count in (2, 4):
                await grow_log(store, count)
                await (await producer.send_many([b"x"] * 8, keys=[f"key{n}" for n in range(8)]))
        request = parse_read_options({"path": str(tmp_path), "kind": "log", "maxFilesPerTrigger": "1"})
        schema = await request.dataset.schema(store)
        spans = [span for task in await asyncio.to_thread(plan_tasks, request, schema) for span in task]
        steps, reached = list[Span](), dict[str, int]()
        while True:
            end, _ = await latest_numbers(request, store, reached, limited=True, target=None)
            if all(number <= reached.get(partition, 0) for partition, number in end.items()):
                break
            steps += await plan_micro_batch(request, store, reached, end)
            reached = end
        files = (await store.list("partition=")).entries
    for found in (spans, steps):
        rows = await asyncio.to_thread(list, read_spans(request, found, schema))
        assert sum(batch.num_rows for batch in rows) == 16
    assert len(steps) == len(files)  # a seal is a step, once


async def test_dead_letters_have_gaps_and_are_all_found(store: Store, fleet: Fleet) -> None:
    await fleet.commit(p0=5)  # a commit without dead letters
    await fleet.commit(p0=5)
    request = asked(kind="dead-letters")
    end, _ = await latest_numbers(request, store, {}, limited=True, target=None)
    assert numbers(await plan_micro_batch(request, store, {"1": 2}, end)) == {"0": [0, 1, 2, 3, 4, 6], "1": [2]}


async def test_so_many_files_of_dead_letters_are_taken_at_a_time(store: Store, fleet: Fleet) -> None:
    request, at, taken = asked(kind="dead-letters", maxFilesPerTrigger="3"), {"0": 0, "1": 0}, []
    while (end := (await latest_numbers(request, store, at, limited=True, target=None))[0]) != at:
        taken.append(sum(len(span.files) for span in await plan_micro_batch(request, store, at, end)))
        at = end
    assert taken == [3, 3, 2]


@pytest.mark.parametrize("tasks", [1, 2, 3, 8, 100])
def test_files_are_split_into_tasks_of_similar_size(tasks: int) -> None:
    spans = [
        Span(
            str(p),
            [DataFile(10 * n, 10 * n + 10, "", 1000 + 50_000 * (n % 3), 0.0) for n in range(count)],
            10 * count,
        )
        for p, count in enumerate([1, 40, 7, 0, 12])
    ]
    parts = split_into_tasks(spans, tasks)
    assert len(parts) <= tasks
    flat = [(span.partition, file) for part in parts for span in part for file in span.files]
    assert flat == [(span.partition, file) for span in spans for file in span.files]
    for part in parts:
        for span in part:
            own = next(s.files for s in spans if s.partition == span.partition)
            following = [file.number for file in own if file.number > span.files[-1].number]
            assert span.stop == (min(following) if following else spans[int(span.partition)].stop)
    weights = [sum(file.size + 64 * 2**10 for span in part for file in span.files) for part in parts]
    assert max(weights) <= sum(weights) / tasks + 2 * (64 * 2**10 + 101_000)


def test_a_file_across_two_tasks_goes_to_the_larger_share() -> None:
    sizes = {"a": 1_877_000, "b": 1_877_000, "c": 1_877_100, "d": 1_877_000}  # the border is in the first bytes of c
    spans = [
        Span(p, [DataFile(0, 9, "", large, 0.0), DataFile(9, 10, "", 211_000, 0.0)], 10) for p, large in sizes.items()
    ]
    assert [[span.partition for span in part] for part in split_into_tasks(spans, 2)] == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"path": ""}, "which container"),
        ({"path": "memory://x"}, "exists in one process"),
        ({"name": ""}, 'of which processor.*option."name"'),
        ({"kind": "rows"}, "kind = 'rows': output, log, dead-letters"),
        ({"maxRowsPerTrigger": "1" * 5_000}, "maxRowsPerTrigger = '1.*: a whole number, 1 or more"),
        ({"maxRowsPerTrigger": "many"}, "maxRowsPerTrigger = 'many': a whole number, 1 or more"),
        ({"kind": "dead-letters", "maxRowsPerTrigger": "5"}, "maxFilesPerTrigger"),
        ({"startSequence": "now"}, "startSequence = 'now'"),
        ({"startSequence": "-1"}, "startSequence = '-1': a whole number, 0 or more"),
        ({"startSequence": '{"0": -5}'}, "startSequence = '{\"0\": -5}': a whole number, 0 or more"),
        ({"partitions": "[]"}, "partitions"),
        ({"partitions": ""}, "partitions = '': names such as 0,1,5, or a JSON list of names"),
        ({"partitions": "0,"}, "partitions = '0,': names such as"),
        ({"tasks": "0"}, "tasks = '0'"),
        ({"s3_endpiont": "x"}, r"no option s3_endpiont; did you mean s3_endpoint\? There are: path, .*s3_endpoint"),
        ({"startsequense": "1"}, r"no option startsequense; did you mean startSequence\?"),
        ({"zzz": "1"}, "no option zzz; there are: path"),
        ({"store_timeout": "soon"}, "store_timeout"),
    ],
)
def test_a_wrong_option_is_refused_with_the_allowed_values(options: dict[str, str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        asked(**options)


def test_complete_settings_ignore_the_environment_of_sparks_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = Settings.load(store_patience="60s", s3_access_key="mine", s3_secret_key="too")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACTORPROC_STORE_PATIENCE", "1s")
    (tmp_path / "actorproc.toml").write_text('s3_endpoint = "http://elsewhere:9000"')
    there = asked(**settings_as_options(settings)).settings
    assert (there.store_patience, there.store_options) == (60, settings.store_options)
    here = asked(s3_access_key="x", s3_secret_key="y").settings
    assert here.store_options["s3_endpoint"] == "http://elsewhere:9000", "else they say what is not given"
    assert explicit_settings_as_options(Settings(poll_interval=2)) == {"poll_interval": "2.0"}


def test_secrets_in_files_are_read_before_options_leave_the_driver(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("@two\n")
    settings = Settings.load(s3_access_key="one", s3_secret_key=f"@{tmp_path}/secret")
    sent = settings_as_options(settings)
    assert (sent["s3_access_key"], sent["s3_secret_key"]) == ("one", "@@two")
    assert explicit_settings_as_options(settings)["s3_secret_key"] == "@@two"
    hadoop = open_store("s3://bucket", asked(**sent).settings).backend.hadoop
    assert hadoop is not None
    assert hadoop.options["fs.s3a.secret.key"] == "@two"


def test_tasks_get_absolute_urls_and_partition_names_as_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert asked(path="state").url == f"file://{tmp_path}/state"
    assert asked(partitions='[" a", "b"]').partitions == frozenset({" a", "b"})
    assert asked(partitions=" a, b").partitions == frozenset({"a", "b"})


async def test_a_batch_finds_dead_letters_published_during_the_listing(
    store: Store, backend: Watched, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def passes_over_once(prefix: str, after: str = "", limit: int | None = None) -> Listing:
        listing = await Watched.list(backend, prefix, after, limit)
        if prefix == LAYOUT.dead_letter_dir("0"):
            backend.unlisted.clear()
        return listing

    backend.unlisted.add(LAYOUT.dead_letter_file("0", 2))
    monkeypatch.setattr(backend, "list", passes_over_once)
    assert numbers(await plan_batch(asked(kind="dead-letters"), store))["0"] == [0, 1, 2, 3, 4]
