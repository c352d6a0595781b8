"""Sinks whose positions are in the container: what is sent, under which keys, and when the position moves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pyarrow as pa
import pytest
from msgspec.structs import replace

from actorproc.admin import sinks as operate
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.options import SinkOptions
from actorproc.sinks.positions import PositionsInContainer, commits_of
from actorproc.sinks.protocol import Delivery, Guarantee, SinkError, SinkRow
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing import check_sink
from tests.sinks.test_delivery import LAYOUT, World, story


class Target:
    """A receiver of requests: by key, how often each has arrived."""

    def __init__(self) -> None:
        self.requests: dict[str, list[int]] = {}
        self.arrived: Counter[str] = Counter()
        self.lose_replies = 0
        self.again_in = 0.0
        self.seconds = 0.0
        """That a request takes after it has arrived."""

    @property
    def numbers(self) -> list[int]:
        return sorted(n for numbers in self.requests.values() for n in numbers)

    @property
    def all_numbers(self) -> list[int]:
        """With those of repeated requests."""
        return [n for key, count in self.arrived.items() for n in self.requests[key] * count]

    def take(self, key: str, numbers: list[int]) -> None:
        assert self.requests.setdefault(key, numbers) == numbers, "two contents under one key"
        self.arrived[key] += 1
        if self.lose_replies:
            self.lose_replies -= 1
            raise SinkError("no answer", again_in=self.again_in)


class RequestSink(PositionsInContainer):
    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, target: Target, options: dict[str, Any] | None = None) -> None:
        self.target, self.url, self.options = target, "test:target", SinkOptions(**(options or {}))

    async def open(self, schema: pa.Schema) -> None:
        pass

    async def send(self, delivery: Delivery) -> None:
        for commit in commits_of(delivery):
            self.target.take(commit.key(), commit.rows["n"].to_pylist())
            await SYSTEM.sleep(self.target.seconds)

    async def close(self) -> None:
        pass


def sinks(target: Target) -> dict[str, Any]:
    return {"sinks": {"db": RequestSink(target)}}


async def test_the_checks_of_the_test_kit_hold() -> None:
    target, store = Target(), Store(MemoryStore(clock=SYSTEM), clock=SYSTEM)

    def make() -> RequestSink:
        sink = RequestSink(target)
        sink.keep_in(store, ProcessorLayout("checked"), "x")
        return sink

    async def rows() -> list[int]:
        return target.all_numbers

    checked = await check_sink(make, rows)
    assert checked.guarantee is Guarantee.AT_LEAST_ONCE


def test_a_lost_answer_repeats_a_request_with_its_key() -> None:
    async def work(world: World) -> None:
        target = Target()
        target.lose_replies = 5
        world.feed(100)
        await world.until_end(**sinks(target))
        world.feed(50)
        await world.until_end(**sinks(target))
        assert target.numbers == list(range(150))
        assert target.arrived.total() > len(target.requests)

    story(work)


def test_a_killed_host_repeats_requests_with_their_keys() -> None:
    async def work(world: World) -> None:
        target = Target()
        target.seconds = 1.5
        quick = {"lease_acquire_interval": 2, "lease_renew_interval": 1, "lease_expiration_interval": 8}
        for round_ in range(12):
            with anyio.move_on_after(15 + 0.3 * round_):
                async with world.host(**quick, **sinks(target)):
                    for _ in range(20):
                        world.feed(4)
                        await anyio.sleep(1)
        await world.until_end(**sinks(target))
        assert target.numbers == list(range(world.fed))
        assert target.arrived.total() > len(target.requests)

    story(work)


def test_the_target_says_how_long_to_wait() -> None:
    async def work(world: World) -> None:
        target = Target()
        target.lose_replies, target.again_in = 1, 200.0
        world.feed(1)
        before = anyio.current_time()
        await world.until_end(**sinks(target))
        assert 200 < anyio.current_time() - before < 250
        assert target.numbers == [0]

    story(work, partitions=1)


def test_redelivered_commits_have_new_keys() -> None:
    async def work(world: World) -> None:
        target = Target()
        for _ in range(2):
            world.feed(20)
            await world.until_end(**sinks(target))
        await operate.deliver_again(world.store, LAYOUT, "db", 1)
        await world.until_end(**sinks(target))
        assert target.numbers == sorted([*range(40), *range(20, 40)])
        assert set(target.arrived.values()) == {1}

    story(work)


def test_a_sink_that_is_deleted_and_registered_again_has_new_keys() -> None:
    async def work(world: World) -> None:
        target = Target()
        world.feed(20)
        await world.until_end(**sinks(target))
        await operate.delete(world.store, LAYOUT, "db")
        await world.until_end(**sinks(target))
        assert target.numbers == sorted([*range(20), *range(20)])

    story(work)


def test_a_paused_sink_gets_no_request() -> None:
    async def work(world: World) -> None:
        target = Target()
        async with world.host(**sinks(target)):
            world.feed(20)
            while len(target.numbers) < 20:
                await anyio.sleep(0.1)
            await operate.pause(world.store, LAYOUT, "db")
            await anyio.sleep(30)
            (status,) = await operate.read_sinks(world.store, LAYOUT)
            assert status.state == "paused"
            world.feed(20)
            await anyio.sleep(60)
            assert len(target.numbers) == 20
            await operate.resume(world.store, LAYOUT, "db")
            while len(target.numbers) < 40:
                await anyio.sleep(0.1)
        assert target.numbers == list(range(40))

    story(work)


ROW = SinkRow("file:///state/x", 1, "t", 0, 2, "p1")
ROWS = pa.table({"n": [5, 6, 7], "_sequence": [10, 10, 12]})
DELIVERY = Delivery("0", ROWS, 0, (2, 1), None, ROW, put_ids=("p0", "p1"))


def first_key(delivery: Delivery) -> str:
    return next(iter(commits_of(delivery))).key()


@pytest.mark.parametrize(
    "other",
    [
        Delivery("1", ROWS, 0, (2, 1), None, ROW, put_ids=("p0", "p1")),
        Delivery("0", ROWS, 1, (2, 1), None, ROW, put_ids=("p0", "p1")),
        Delivery("0", ROWS, 0, (2, 1), None, ROW, put_ids=("other", "p1")),
        Delivery("0", ROWS, 0, (1, 2), None, ROW, put_ids=("p0", "p1")),
        Delivery("0", ROWS.slice(1), 0, (2,), None, ROW, put_ids=("p0",)),
        *(
            Delivery("0", ROWS, 0, (2, 1), None, replace(ROW, **change), put_ids=("p0", "p1"))
            for change in ({"home": "file:///other/x"}, {"life": 2}, {"term": "u"})
        ),
    ],
)
def test_what_makes_another_request_is_in_its_key(other: Delivery) -> None:
    assert first_key(other) != first_key(DELIVERY)


def test_a_key_does_not_depend_on_what_is_delivered_with_it() -> None:
    alone = Delivery("0", ROWS.slice(0, 2), 0, (2,), ROW, replace(ROW, fence=3, position=1), put_ids=("p0",))
    wide = pa.table({"more": [None] * 3, "n": [5, 6, 7], "_sequence": [10, 10, 12]})
    assert first_key(alone) == first_key(DELIVERY)
    assert first_key(Delivery("0", wide, 0, (2, 1), None, ROW, put_ids=("p0", "p1"))) == first_key(DELIVERY)
    two, one = commits_of(DELIVERY)
    assert len({two.key(), two.key(0, 1), two.key(1, 2), one.key()}) == 4
    assert one.rows["n"].to_pylist() == [7]
