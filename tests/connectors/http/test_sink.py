"""The HTTP sink against a real server: requests and their keys, statuses, waits, limits, and the checks of the kit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from actorproc.connectors.http import HttpSink
from actorproc.connectors.http.bodies import parts_of
from actorproc.connectors.http.options import HttpOptions
from actorproc.errors import SettingsError, UsageError
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.opening import make_sink
from actorproc.sinks.protocol import Delivery, Guarantee, SinkError, SinkPlace, SinkRefused, SinkRow
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing import check_sink
from actorproc.testing.sink_check import ALL_TYPES
from tests.connectors.http.receiver import Answer, Receiver, Request, receiver
from tests.sinks.matrix import tried

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("_sequence", pa.int64(), nullable=False)])
ROW = SinkRow("memory://x", 1, "t", 0, 1, "p0")


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


def http_sink(url: str, store: Store | None = None, **options: Any) -> HttpSink:
    sink = HttpSink(url, options, SinkPlace("hook", "Orders", SYSTEM))
    sink.keep_in(store or Store(MemoryStore(clock=SYSTEM), clock=SYSTEM), ProcessorLayout("Orders"), "hook")
    return sink


def delivery(count: int = 3, *, since: int = 0, was: SinkRow | None = None) -> Delivery:
    rows = pa.table({"n": range(count), "_sequence": range(count)}, SCHEMA)
    now = SinkRow("memory://x", 1, "t", 0, since + 1, f"p{since}")
    return Delivery("0", rows, since, (count,), was, now, put_ids=(f"p{since}",))


async def deliver(sink: HttpSink, given: Delivery | None = None) -> None:
    async with sink:
        await sink.open(SCHEMA)
        await sink.write(given or delivery())


def answers(*given: Answer) -> Callable[[Request], Answer]:
    """These in turn, then 200."""
    left = iter(given)
    return lambda request: next(left, Answer())


async def test_it_keeps_at_least_once(server: Receiver) -> None:
    store = Store(MemoryStore(clock=SYSTEM), clock=SYSTEM)

    async def rows() -> list[int]:
        return [row["n"] for request in server.arrived for row in request.rows]

    checked = await check_sink(lambda: http_sink(server.url, store), rows)
    tried("https", checked, on="a receiver of the tests", double=True)
    assert checked.guarantee is Guarantee.AT_LEAST_ONCE


async def test_a_commit_is_one_request(server: Receiver) -> None:
    await deliver(http_sink(server.url))
    (request,) = server.arrived
    assert (request.method, request.path, request.headers["content-type"]) == ("POST", "/hook", "application/json")
    assert json.loads(request.body) == [{"n": n, "_sequence": n, "_partition": "0"} for n in range(3)]
    assert len(request.key) == 32


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"request_rows": 2}, [2, 2, 1]),
        ({"body": "row"}, [1, 1, 1, 1, 1]),
        ({"body": "lines", "request_rows": 4}, [4, 1]),
        ({"request_bytes": 90}, [2, 2, 1]),
        ({"request_bytes": 1}, [1, 1, 1, 1, 1]),
    ],
)
async def test_a_large_commit_is_several_requests(server: Receiver, options: dict[str, Any], sizes: list[int]) -> None:
    await deliver(http_sink(server.url, **options), delivery(5))
    assert [len(request.rows) for request in server.arrived] == sizes
    assert [row["n"] for row in server.rows] == list(range(5))
    assert len(server.kept) == len(sizes)


async def test_several_commits_are_never_one_request(server: Receiver) -> None:
    rows = pa.table({"n": range(5), "_sequence": range(5)}, SCHEMA)
    now = SinkRow("memory://x", 1, "t", 0, 3, "c")
    await deliver(http_sink(server.url), Delivery("0", rows, 0, (2, 0, 3), None, now, put_ids=("a", "b", "c")))
    assert [len(request.rows) for request in server.arrived] == [2, 3]


async def test_every_type_is_json(server: Receiver) -> None:
    columns = {name: pa.array(values, kind) for name, (kind, values) in ALL_TYPES.items()}
    rows = pa.table(columns).append_column("_sequence", pa.array(range(3), pa.int64()))
    async with http_sink(server.url) as sink:
        await sink.open(rows.schema)
        await sink.write(Delivery("0", rows, 0, (3,), None, ROW, put_ids=("p0",)))
    first, _, third = server.rows
    assert set(first) == {*ALL_TYPES, "_sequence", "_partition"}
    assert first["large"] == -(2**63)
    assert first["moment"].startswith("2026-01-02T03:04:05.678901")
    assert first["odd"] is None
    assert not third.keys() & {*ALL_TYPES}  # nulls


async def test_options_of_the_request(server: Receiver, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("Bearer abc\n")
    (tmp_path / "path").write_text("/T0/secret?x=1\n")
    headers = {"Authorization": f"@{tmp_path}/token", "Content-Type": "application/x-rows"}
    await deliver(http_sink(server.url, method="PUT", headers=headers, path=f"@{tmp_path}/path"))
    (request,) = server.arrived
    assert (request.method, request.path) == ("PUT", "/hook/T0/secret?x=1")
    assert (request.headers["authorization"], request.headers["content-type"]) == ("Bearer abc", "application/x-rows")


async def test_headers_come_from_a_file_of_lines(server: Receiver, tmp_path: Path) -> None:
    (tmp_path / "headers").write_text("Authorization: Bearer a:b\nX-Team:  web\n")
    await deliver(http_sink(server.url, headers=f"@{tmp_path}/headers"))
    (request,) = server.arrived
    assert (request.headers["authorization"], request.headers["x-team"]) == ("Bearer a:b", "web")


@pytest.mark.parametrize(
    "options",
    [
        {"headers": "no colon"},
        {"headers": {"Idempotency-Key": "x"}},
        {"headers": {"X": "a\r\nY: b"}},
        {"headers": {"X y": "a"}},
        {"headers": {"X": "@/nowhere/at-all"}},
        {"path": "no-slash"},
        {"path": "/a b"},
        {"method": "GET"},
        {"timeout": 0},
        {"unknown": 1},
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises((UsageError, SettingsError)):
        make_sink("hook", {"url": "http://127.0.0.1/x", **options}, processor="p", clock=SYSTEM)


async def test_a_failure_says_whether_requests_before_it_were_acknowledged(server: Receiver) -> None:
    server.answer = answers(Answer(is_lost=True), Answer(), Answer(is_lost=True))
    async with http_sink(server.url, body="row") as sink:
        await sink.open(SCHEMA)
        for made_progress in (False, True):
            with pytest.raises(SinkError) as failed:
                await sink.write(delivery())
            assert failed.value.made_progress is made_progress
        await sink.write(delivery())
    assert [row["n"] for row in server.rows] == [0, 1, 2]


def test_a_commit_has_the_same_bodies_after_a_column_was_added() -> None:
    """A host of a later version, or a compaction, adds the column to older rows: nulls."""
    before = pa.table({"n": pa.array([1, None, 3]), "text": ["a", "b", "c"], "_sequence": [0, 1, 2]})
    after = before.add_column(2, "more", pa.nulls(3, pa.string()))
    options = HttpOptions(request_bytes=80)
    bodies = parts_of(before, "0", options)
    assert len(bodies) > 1
    assert parts_of(after, "0", options) == bodies
    rows = [row for part in bodies for row in json.loads(part.body)]
    assert [row.get("n") for row in rows] == [1, None, 3]
    assert all(row["_partition"] == "0" for row in rows)


def test_messages_show_no_secret() -> None:
    with pytest.raises(UsageError) as caught:
        make_sink(
            "hook", {"url": "http://h/x", "headers": {"A b": "s3cret"}, "path": "s3cret"}, processor="p", clock=SYSTEM
        )
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http:", "http://", "https:///x", "http://me@host/", "http://h:x/", "http://h/#a"])
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        make_sink("hook", url, processor="p", clock=SYSTEM)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_2xx_acknowledges(server: Receiver, status: int) -> None:
    server.answer = answers(Answer(status))
    sink = http_sink(server.url)
    await deliver(sink)
    assert await sink.read("0") == ROW


@pytest.mark.parametrize("status", [400, 401, 404, 409, 413, 422, 451, 207])
async def test_4xx_and_207_refuse(server: Receiver, status: int) -> None:
    server.answer = answers(Answer(status, body=b"no\x1b[31m \x00such\r\nfield " + b"x" * 500))
    sink = http_sink(server.url)
    with pytest.raises(SinkRefused) as caught:
        await deliver(sink)
    text = str(caught.value)
    why = ", so some of the rows may have failed" if status == 207 else ""
    assert text.startswith(f"{server.url} answers {status}{why}: no [31m such field xxx")
    assert len(text.partition(": ")[2]) == 200
    assert await sink.read("0") is None


@pytest.mark.parametrize("status", [301, 307, 408, 425, 429, 500, 502, 503, 599])
async def test_other_statuses_are_tried_again(server: Receiver, status: int) -> None:
    server.answer = answers(Answer(status, {"Location": "http://127.0.0.1:1/elsewhere"}))
    sink = http_sink(server.url)
    with pytest.raises(SinkError) as caught:
        await deliver(sink)
    assert not isinstance(caught.value, SinkRefused)
    assert len(server.arrived) == 1
    await deliver(sink)
    assert await sink.read("0") == ROW


@pytest.mark.parametrize(
    ("header", "low", "high"),
    [
        ("7", 7, 7),
        ("0", 0, 0),
        ("999999999999999999999999", 60, 60),
        ("-5", 0, 0),
        ("soon", 0, 0),
        ("1e9", 0, 0),
        ("", 0, 0),
        (lambda: formatdate(time.time() + 20, usegmt=True), 18, 20),
        (lambda: formatdate(time.time() + 9e8, usegmt=True), 60, 60),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Wed, 99 Foo 99999999999 07:28:00 GMT", 0, 0),
    ],
)
async def test_retry_after_is_honoured_within_bounds(
    server: Receiver, header: str | Callable[[], str], low: float, high: float
) -> None:
    value = header if isinstance(header, str) else header()
    server.answer = answers(Answer(429, {"Retry-After": value}))
    with pytest.raises(SinkError) as caught:
        await deliver(http_sink(server.url, most_retry_after=60))
    assert low <= caught.value.again_in <= high


async def test_all_partitions_wait_as_long_as_the_server_asks(server: Receiver) -> None:
    server.answer = answers(Answer(503, {"Retry-After": "1"}))
    async with http_sink(server.url) as sink:
        await sink.open(SCHEMA)
        with pytest.raises(SinkError, match="answers 503"):
            await sink.write(delivery())
        with pytest.raises(SinkError, match="has asked to wait 1 s longer") as caught:
            await sink.write(delivery())
        assert 0 < caught.value.again_in <= 1
        await anyio.sleep(1.1)
        await sink.write(delivery())
    assert len(server.arrived) == 2


async def test_requests_that_wait_for_their_turn_see_what_the_server_asks_meanwhile(server: Receiver) -> None:
    server.answer = answers(Answer(503, {"Retry-After": "60"}))
    refusals = list[str]()
    async with http_sink(server.url, max_per_second=4) as sink:
        await sink.open(SCHEMA)

        async def write(partition: str) -> None:
            each = delivery()
            with pytest.raises(SinkError) as caught:
                await sink.write(Delivery(partition, each.rows, 0, (3,), None, each.now, put_ids=("p",)))
            refusals.append(str(caught.value))

        async with anyio.create_task_group() as tasks:
            for partition in range(3):
                tasks.start_soon(write, str(partition))
    assert len(server.arrived) == 1
    assert sum("has asked to wait" in text for text in refusals) == 2


async def test_a_lost_answer_repeats_the_same_request(server: Receiver) -> None:
    server.answer = answers(Answer(), Answer(is_lost=True))
    async with http_sink(server.url, request_rows=1) as sink:
        await sink.open(SCHEMA)
        with pytest.raises(SinkError):
            await sink.write(delivery())
        await sink.write(delivery())
    keys = [request.key for request in server.arrived]
    assert keys == [keys[0], keys[1], keys[1], keys[3]]  # what was acknowledged is not sent again
    assert not server.foreign
    assert [row["n"] for row in server.rows] == [0, 1, 2]


async def test_another_host_repeats_requests_with_the_same_keys(server: Receiver) -> None:
    server.answer = answers(Answer(), Answer(is_lost=True))
    store = Store(MemoryStore(clock=SYSTEM), clock=SYSTEM)
    with pytest.raises(SinkError):
        await deliver(http_sink(server.url, store, request_rows=1))
    await deliver(http_sink(server.url, store, request_rows=1))
    assert (len(server.kept), server.repeats, server.foreign) == (3, 2, [])


async def test_other_cuts_of_a_commit_have_other_keys(server: Receiver) -> None:
    server.answer = answers(Answer(), Answer(is_lost=True))
    store = Store(MemoryStore(clock=SYSTEM), clock=SYSTEM)
    with pytest.raises(SinkError):
        await deliver(http_sink(server.url, store, request_rows=1))
    await deliver(http_sink(server.url, store, request_rows=2))
    assert server.foreign == []
    assert {row["n"] for row in server.rows} == {0, 1, 2}


async def test_at_most_n_requests_a_second(server: Receiver) -> None:
    async with http_sink(server.url, max_per_second=20, body="row") as sink:
        await sink.open(SCHEMA)
        before = time.monotonic()
        async with anyio.create_task_group() as tasks:
            for partition in range(3):
                each = delivery(5)
                tasks.start_soon(
                    sink.write, Delivery(str(partition), each.rows, 0, (5,), None, each.now, put_ids=("p",))
                )
        assert time.monotonic() - before >= 14 / 20
    assert len(server.arrived) == 15


async def test_rows_of_a_partition_arrive_in_order(server: Receiver) -> None:
    async with http_sink(server.url, body="row") as sink:
        await sink.open(SCHEMA)
        was = None
        for since in range(3):
            each = delivery(20, since=since, was=was)
            await sink.write(each)
            was = each.now
    assert [row["n"] for request in server.arrived for row in request.rows] == [*range(20)] * 3


async def test_a_server_that_is_away_is_tried_again() -> None:
    with receiver() as server:
        url = server.url
    with pytest.raises(SinkError, match="Connect") as caught:
        await deliver(http_sink(url, path="/s3cret"))
    assert "s3cret" not in str(caught.value)
