"""The change feed of a Cosmos DB container as a source: the official client, unmodified, on a server of the tests."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

from actorproc import Settings
from actorproc.errors import PartitionGone, RecordsLost, SourceError, UsageError
from actorproc.sources.protocol import Chunk, Partition
from actorproc.testing import check_source

pytest.importorskip("azure.cosmos", reason="azure-cosmos is not installed")

from azure.core.exceptions import ClientAuthenticationError

from actorproc.connectors.cosmos import CosmosSource
from actorproc.connectors.cosmos.position import NO_KEYS, SEQUENCE_BITS, Position, Span, clipped, sequences
from actorproc.records import Cursor
from tests.connectors.cosmos.server import Container, CosmosServer, cosmos

_NAMES = count()
_MIDDLE = "2" + "0" * 31


@pytest.fixture(scope="module")
def server() -> Iterator[CosmosServer]:
    with cosmos() as server:
        yield server


@pytest.fixture
def container(server: CosmosServer) -> Container:
    return server.create("shop", f"flights-{next(_NAMES)}")


def flights(container: Container, numbers: range) -> None:
    """Documents of ten planes, each in a transaction of its own."""
    for number in numbers:
        container.write({"id": str(number), "plane": f"N{number % 10}", "n": number})


def source_of(server: CosmosServer, container: Container, **options: Any) -> CosmosSource:
    return CosmosSource(container.url, server.options | options, settings=Settings(poll_interval=0.01))


@asynccontextmanager
async def opened(server: CosmosServer, container: Container, **options: Any) -> AsyncIterator[CosmosSource]:
    source = source_of(server, container, **options)
    await source.open()
    try:
        yield source
    finally:
        await source.close()


async def read(source: CosmosSource, partition: str, position: str) -> tuple[list[Any], Chunk]:
    """The documents up to the present end, and the chunk that says so."""
    found: list[Any] = []
    with anyio.fail_after(20):
        async for chunk in source.read(partition, position):
            found += chunk.batch.json()
            if not len(chunk.batch):
                return found, chunk
    raise AssertionError


async def read_all(source: CosmosSource, partition: str, position: str) -> list[int]:
    documents, _ = await read(source, partition, position)
    return [document["n"] for document in documents]


# Reading one range


async def test_a_container_keeps_the_contract_of_a_source(server: CosmosServer, container: Container) -> None:
    flights(container, range(50))

    container.write({"id": "a", "plane": "N1"}, {"id": "b", "plane": "N1"})  # the end is behind both

    async def add() -> None:
        flights(container, range(50, 51))

    await check_source(lambda: source_of(server, container, max_items=7), add=add)


async def test_a_document_becomes_a_record(server: CosmosServer, container: Container) -> None:
    lsn = container.write({"id": "1", "plane": "N14228", "n": 5})
    async with opened(server, container) as source:
        chunk = await anext(source.read("0", await source.start("0", "earliest")))
        record = chunk.batch[0]
    assert (record.key, record.json()["n"], record.sequence) == (b"N14228", 5, lsn << SEQUENCE_BITS)
    assert record.timestamp is not None
    assert datetime.now(UTC) - record.timestamp < timedelta(minutes=1)
    assert chunk.cost is not None
    assert (chunk.cost.requests, chunk.cost.charges) == (1, {"request_units": 1.0})
    assert chunk.cost.tokens == {"session": f"0:-1#{lsn}"}


async def test_documents_of_one_transaction_are_not_cut_apart(server: CosmosServer, container: Container) -> None:
    flights(container, range(1))
    container.write(*({"id": f"t{n}", "plane": "N1", "n": n} for n in range(100, 103)))
    flights(container, range(1, 2))
    async with opened(server, container, max_items=2) as source:
        reading = source.read("0", await source.start("0", "earliest"))
        first, second = await anext(reading), await anext(reading)
    assert [record.json()["n"] for record in first.batch] == [0, 100, 101, 102]
    assert first.batch.sequences == [1 << 16, 2 << 16, (2 << 16) + 1, (2 << 16) + 2]
    assert first.cuts == [1 << 16, (2 << 16) + 2]
    assert [record.json()["n"] for record in second.batch] == [1]


async def test_only_the_latest_version_of_a_document_comes(server: CosmosServer, container: Container) -> None:
    flights(container, range(3))
    container.write({"id": "1", "plane": "N1", "n": 10})
    container.write({"id": "2", "plane": "N2"}, delete=True)
    async with opened(server, container) as source:
        assert await read_all(source, "0", await source.start("0", "earliest")) == [0, 10]


async def test_mode_all_gives_every_version_and_deletes(server: CosmosServer, container: Container) -> None:
    flights(container, range(2))
    async with opened(server, container, mode="all") as source:
        start = await source.start("0", "latest")
        container.write({"id": "1", "plane": "N1", "n": 10})
        container.write({"id": "1", "plane": "N1", "n": 11})
        container.write({"id": "1", "plane": "N1"}, delete=True)
        chunk = await anext(source.read("0", start))
        with pytest.raises(UsageError, match="has no beginning"):
            await source.start("0", "earliest")
    assert [dict(record.headers)["operation"] for record in chunk.batch] == [b"replace", b"replace", b"delete"]
    assert [record.key for record in chunk.batch] == [b"N1"] * 3
    assert chunk.batch[1].json()["current"]["n"] == 11
    assert chunk.batch[2].json()["previous"]["n"] == 11


async def test_latest_begins_after_existing_documents(server: CosmosServer, container: Container) -> None:
    flights(container, range(5))
    async with opened(server, container) as source:
        start = await source.start("0", "latest")
        flights(container, range(5, 8))
        assert await read_all(source, "0", start) == [5, 6, 7]


async def test_a_time_begins_at_its_first_transaction_and_is_resumed(
    server: CosmosServer, container: Container
) -> None:
    flights(container, range(5))
    middle = (datetime.now(UTC) + timedelta(seconds=1)).replace(microsecond=0)  # the service knows whole seconds
    await anyio.sleep((middle - datetime.now(UTC)).total_seconds())
    flights(container, range(5, 9))
    async with opened(server, container, max_items=2) as source:
        reading = source.read("0", await source.start("0", middle))
        chunk = await anext(reading)
        assert [record.json()["n"] for record in chunk.batch] == [5, 6]
        assert await read_all(source, "0", chunk.next) == [7, 8], "azure-cosmos cannot resume its own token of a time"
        future = await source.start("0", datetime.now(UTC) + timedelta(hours=1))
        assert future == (await source.end("0")).position


async def test_a_position_moves_over_changes_that_are_not_shown(server: CosmosServer, container: Container) -> None:
    flights(container, range(3))
    async with opened(server, container) as source:
        container.write({"id": "2", "plane": "N2"}, delete=True)
        documents, chunk = await read(source, "0", await source.start("0", "earliest"))
        assert len(documents) == 2
        assert chunk.next == (await source.end("0")).position


async def test_lag_counts_transactions(server: CosmosServer, container: Container) -> None:
    flights(container, range(5))
    async with opened(server, container) as source:
        end = await source.end("0")
        assert end.sequence is not None
        assert source.records_between(-1, end.sequence) == 5
        assert source.records_between(3 << SEQUENCE_BITS, end.sequence) == 2
        oldest = await source.time_at("0", await source.start("0", "earliest"))
        assert oldest is not None
        assert await source.time_at("0", end.position) is None


# Splits and merges


async def test_a_split_ends_the_parent_and_its_children_read_on(server: CosmosServer, container: Container) -> None:
    flights(container, range(20))
    async with opened(server, container, max_items=8) as source:
        reading = source.read("0", await source.start("0", "earliest"))
        first = await anext(reading)
        container.split("0")
        flights(container, range(20, 40))
        ended = await anext(reading)
        assert (ended.ended, len(ended.batch), ended.next) == (True, 0, first.next)
        with pytest.raises(StopAsyncIteration):
            await anext(reading)
        assert await source.partitions() == [Partition("1", ("0",)), Partition("2", ("0",))]
        found = [record.json()["n"] for record in first.batch]
        for child in ("1", "2"):
            start = await source.start_after(child, {"0": Cursor(ended.next)})
            assert start is not None
            found += await read_all(source, child, start)
    assert sorted(found) == list(range(40)), "each once"


async def test_a_parent_that_was_split_before_it_is_read_ends_at_once(
    server: CosmosServer, container: Container
) -> None:
    flights(container, range(5))
    async with opened(server, container) as source:
        start = await source.start("0", "earliest")
    container.split("0")
    async with opened(server, container) as source:
        chunk = await anext(source.read("0", start))
        assert (chunk.ended, chunk.next) == (True, start)
        assert await source.start("0", "earliest") == str(NO_KEYS), "left to its children, by a host that never saw it"
        with pytest.raises(PartitionGone, match="is no range of the container"):
            await source.start("7", "earliest")


async def test_grandchildren_read_on_where_the_nearest_ancestor_ended(
    server: CosmosServer, container: Container
) -> None:
    flights(container, range(20))
    async with opened(server, container, max_items=100) as source:
        _, chunk = await read(source, "0", await source.start("0", "earliest"))
        container.split("0")
        [low, _] = [one.name for one in await source.partitions() if isinstance(one, Partition)]
        start = await source.start_after(low, {"0": Cursor(chunk.next)})
        assert start is not None
        flights(container, range(20, 40))
        _, later = await read(source, low, start)
        container.split(low)
        flights(container, range(40, 60))
        children = [one.name for one in await source.partitions() if isinstance(one, Partition) and low in one.parents]
        found = [
            await read_all(
                source, child, str(await source.start_after(child, {"0": Cursor(chunk.next), low: Cursor(later.next)}))
            )
            for child in children
        ]
    planes = {f"N{n % 10}" for part in found for n in part}
    assert sorted(n for part in found for n in part) == [n for n in range(40, 60) if f"N{n % 10}" in planes]


async def test_a_merged_range_reads_each_half_on_and_then_both_as_one(
    server: CosmosServer, container: Container
) -> None:
    container.split("0")
    flights(container, range(30))
    async with opened(server, container, max_items=3) as source:
        left = await anext(source.read("1", await source.start("1", "earliest")))
        _, right = await read(source, "2", await source.start("2", "earliest"))
        child = container.merge("1", "2")
        flights(container, range(30, 40))
        assert (await anext(source.read("1", left.next))).ended
        start = str(await source.start_after(child, {"1": Cursor(left.next), "2": Cursor(right.next)}))
        assert len(Position.parse(start)) == 2
        documents, chunk = await read(source, child, start)
        assert len(Position.parse(chunk.next)) == 1
    done = [record.json()["n"] for record in left.batch]
    seen = [document["n"] for document in documents]
    assert len(set(done + seen)) == len(done + seen), "none twice"
    unread = [n for n in range(40) if n not in done and n not in seen]
    assert unread == [n for n in range(30) if container_half(container, n) == "right"]
    assert [document["_lsn"] for document in documents] == sorted(document["_lsn"] for document in documents)


async def test_a_range_that_is_merged_before_it_is_opened_neither_loses_nor_repeats(server: CosmosServer) -> None:
    container = server.create("shop", "halves", 2)
    flights(container, range(40))
    async with opened(server, container, max_items=100) as source:
        ends = {name: (await read(source, name, await source.start(name, "earliest")))[1].next for name in "01"}
        container.split("0")
        flights(container, range(40, 80))
        start = str(await source.start_after("2", {"0": Cursor(ends["0"])}))
        documents, chunk = await read(source, "2", start)
        ends["2"] = chunk.next
        container.merge("3", "1")
        flights(container, range(80, 120))
        ends["3"] = str(await source.start_after("3", {"0": Cursor(ends["0"])}))
        ended = await anext(source.read("3", ends["3"]))
        assert (ended.ended, len(ended.batch), ended.next) == (True, 0, ends["3"])
        found = [document["n"] for document in documents]
        [merged] = [one for one in await source.partitions() if isinstance(one, Partition) and "3" in one.parents]
        parents = {name: Cursor(ends[name]) for name in merged.parents}
        found += await read_all(source, merged.name, str(await source.start_after(merged.name, parents)))
        found += await read_all(source, "2", ends["2"])
    assert sorted(found) == list(range(40, 120))


async def test_transactions_of_two_parents_with_the_same_number_are_both_read(
    server: CosmosServer, container: Container
) -> None:
    container.split("0")
    flights(container, range(40))
    async with opened(server, container, max_items=3) as source:
        child = container.merge("1", "2")
        flights(container, range(40, 50))
        start = str(await source.start_after(child, {"1": Cursor(f"-{_MIDDLE}:0"), "2": Cursor(f"{_MIDDLE}-FF:0")}))
        documents, _ = await read(source, child, start)
    assert len({document["_lsn"] for document in documents}) < 40
    assert sorted(document["n"] for document in documents) == list(range(50))


def container_half(container: Container, number: int) -> str:
    change = next(change for change in container.ranges[0].log if change.id == str(number))
    return "left" if change.key < "1" + "0" * 31 or change.key < _MIDDLE else "right"


def test_spans_of_ancestors_are_cut_to_a_range() -> None:
    old, left, right = Span("", "FF", 5), Span("", "2", 9), Span("2", "FF", 7)
    assert clipped([old, left], "1", "2") == (Span("1", "2", 9),)
    assert clipped([old, left, right], "", "FF") == (left, right)
    assert clipped([old, left], "", "FF") == (left, Span("2", "FF", 5))
    assert clipped([left], "1", "FF") is None
    assert clipped([left._replace(lsn=7), right], "", "FF") == (Span("", "2", 7), right), "numbers do not compare"
    assert clipped([old, Span("1", "2", 3)], "", "FF") == (Span("", "1", 5), Span("1", "2", 3), Span("2", "FF", 5))


def test_positions_survive_as_text() -> None:
    position = Position([Span("", _MIDDLE, 5), Span(_MIDDLE, "FF", 7)])
    assert Position.parse(str(position)) == position
    assert position.lsn == 5
    with pytest.raises(SourceError, match="'x' is no position"):
        Position.parse("x")


def test_documents_of_one_transaction_have_different_sequences() -> None:
    assert sequences([3, 3, 4]) == ([3 << 16, (3 << 16) + 1, 4 << 16], [(3 << 16) + 1, 4 << 16])
    with pytest.raises(SourceError, match="transaction 1 of a change feed has more than 65,536 documents"):
        sequences([1] * 65_537)


# Waiting and failing


async def test_a_throttled_request_is_repeated_when_the_service_says(
    server: CosmosServer, container: Container
) -> None:
    flights(container, range(5))
    server.throttle(9, milliseconds=20)
    async with opened(server, container) as source:
        assert await read_all(source, "0", "-FF:0") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("status", "detail"), [(500, 0), (404, 1002)])  # 1002: this replica is behind another one
async def test_a_service_that_is_away_is_waited_for(
    server: CosmosServer, container: Container, status: int, detail: int
) -> None:
    flights(container, range(5))
    server.fail(2, status, detail)
    async with opened(server, container) as source:
        assert await read_all(source, "0", "-FF:0") == [0, 1, 2, 3, 4]


async def test_a_container_that_was_created_again_is_not_read_on(server: CosmosServer, container: Container) -> None:
    flights(container, range(5))
    async with opened(server, container) as source:
        reading = source.read("0", "-FF:0")
        await anext(reading)
        again = server.create("shop", container.name)
        flights(again, range(100, 120))
        with pytest.raises(RecordsLost, match="was deleted and created again"), anyio.fail_after(20):
            while True:
                await anext(reading)
        with pytest.raises(RecordsLost, match="was deleted and created again"):
            await anext(source.read("0", "-FF:0"))


async def test_a_deleted_container_is_named(server: CosmosServer, container: Container) -> None:
    flights(container, range(5))
    async with opened(server, container) as source:
        server.delete("shop", container.name)
        with pytest.raises(SourceError, match="there is no such container"):
            await anext(source.read("0", "-FF:3"))
    with pytest.raises(SourceError, match="there is no such container"):
        await source_of(server, container).open()


async def test_a_rotated_key_is_read_from_its_file(
    server: CosmosServer, container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights(container, range(5))
    secret = tmp_path / "key"
    secret.write_text(server.key)
    async with opened(server, container, key=f"@{secret}") as source:
        monkeypatch.setattr(server, "key", "YW5vdGhlcg==")
        with pytest.raises(SourceError, match="the login was refused"):
            await read(source, "0", "-FF:0")
        secret.write_text("YW5vdGhlcg==")
        assert await read_all(source, "0", "-FF:0") == [0, 1, 2, 3, 4]


async def test_without_a_key_one_login_by_entra_is_shared_and_closed(
    server: CosmosServer, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = pytest.importorskip("azure.identity.aio")
    calls: list[str] = []

    class NoLogin:
        async def get_token(self, *_: str, **__: Any) -> None:
            calls.append("asked")
            raise ClientAuthenticationError("no identity here")

        async def close(self) -> None:
            calls.append("closed")

    monkeypatch.delenv("COSMOS_KEY", raising=False)
    monkeypatch.setattr(identity, "DefaultAzureCredential", NoLogin)
    source = CosmosSource(container.url, {"endpoint": f"https://127.0.0.1:{server.port}/"})
    for _ in range(2):
        with pytest.raises(SourceError, match="Entra gave no token: no identity here"):
            await source.open()
    await source.close()
    assert calls[-1] == "closed"
    assert calls.count("closed") == 1


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("cosmos://account/database", {}, r"write cosmos://ACCOUNT/DATABASE/CONTAINER"),
        ("cosmos://account/database/container?x=1", {}, r"write cosmos://"),
        ("cosmos://me:secret@account/database/container", {}, r"no credentials in a URL"),
        ("cosmos://account/database/container", {"mode": "some"}, r"source option mode = 'some': must be 'latest' or"),
        ("cosmos://account/database/container", {"keyy": "x"}, r"did you mean key\?"),
    ],
)
def test_wrong_urls_and_options_are_refused(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        CosmosSource(url, options)
    assert "secret" not in str(refused.value)


# Coming from a change feed processor


def lease(
    container: Container, number: str, token: str | None, processor: str = "delays", **more: Any
) -> dict[str, Any]:
    """As the processor of .NET writes it."""
    identity = f"{processor}127.0.0.1_db==_{container.rid}..{number}"
    return {"id": identity, "plane": identity, "LeaseToken": number, "ContinuationToken": token} | more


async def test_a_processor_begins_where_a_change_feed_processor_is(server: CosmosServer, container: Container) -> None:
    container.split("0")
    flights(container, range(20))
    leases = server.create("shop", f"leases-{next(_NAMES)}")
    bounds = {"min": "", "max": container.ranges[0].high}
    leases.write(lease(container, "1", '"3"', FeedRange={"Range": bounds}))
    leases.write(lease(container, "2", None))
    leases.write({"id": f"delays127.0.0.1_db==_{container.rid}.info", "plane": "info"})
    async with opened(server, container) as source:
        position = await source.position_of(f"cosmos-leases:{leases.url}", "1")
        assert position == f"-{container.ranges[0].high}:3"
        assert await source.position_of(f"cosmos-leases:{leases.url}", "2") is None, "it has not begun there"
        leases.write(lease(container, "1", '"4"', processor="billing"))
    async with opened(server, container) as source:
        with pytest.raises(UsageError, match=r"several processors keep leases there"):
            await source.position_of(f"cosmos-leases:{leases.url}", "1")
        found = await source.position_of(f"cosmos-leases:{leases.url}?processor=billing", "1")
        assert found == f"-{container.ranges[0].high}:4"


async def test_a_lease_of_java_names_its_ranges_in_its_token(server: CosmosServer, container: Container) -> None:
    flights(container, range(20))
    leases = server.create("shop", f"leases-{next(_NAMES)}")
    part = {"token": '"7"', "range": {"min": "", "max": "FF", "isMinInclusive": True, "isMaxInclusive": False}}
    state = {"V": 1, "Rid": container.rid, "Continuation": {"V": 1, "Rid": container.rid, "Continuation": [part]}}
    token = base64.b64encode(json.dumps(state).encode()).decode()
    leases.write(lease(container, "-FF", token))
    async with opened(server, container) as source:
        position = await source.position_of(f"cosmos-leases:{leases.url}", "0")
        assert position == "-FF:7"
        leases.write(lease(container, "-FF", "xx"))
        assert await read_all(source, "0", position) == list(range(7, 20))


async def test_other_consumers_are_not_known(server: CosmosServer, container: Container) -> None:
    async with opened(server, container) as source:
        with pytest.raises(UsageError, match=r"knows the positions of cosmos-leases:URL"):
            await source.position_of("kafka-group:x", "0")
