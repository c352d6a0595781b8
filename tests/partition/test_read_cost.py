"""`batch.read`: the cost of reading, which adds up over all batches. In virtual time."""

from __future__ import annotations

import pickle
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, ClassVar

import anyio

from actorproc import Batch, Chunk, PartitionContext, PartitionHandler, Processor, Producer, ReadCost
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.testing import MemorySource
from tests.partition.world import World

PAGE = ReadCost(2.0, bytes=100, requests=1, charges={"units": 3.0})


class Costs(PartitionHandler):
    """Keeps the size and the cost of each batch."""

    seen: ClassVar[list[tuple[int, ReadCost]]]

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        self.seen.append((len(batch), batch.read))


class Charged(MemorySource):
    """Each read takes two seconds, also one that finds nothing."""

    cost = ReadCost(bytes=100, requests=1, charges={"units": 3.0})

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().read(partition, position):
            await anyio.sleep(2)
            yield Chunk(chunk.batch, chunk.next, self.cost)


def costs(*feeds: int, page: int, source: type[Charged] = Charged, **settings: Any) -> list[tuple[int, ReadCost]]:
    """Sizes and costs of the batches of a handler. Each feed comes after the one before it is processed."""

    class Handler(Costs):
        seen: ClassVar[list[tuple[int, ReadCost]]] = []

    async def main() -> None:
        world = World(Handler, clock=VirtualClock, **settings)
        world.source = source(page=page)
        async with world.running(1) as actor:
            for count in feeds:
                world.feed(count)
                while actor.statistics.counts.records < world.fed or not actor.is_at_end:
                    await anyio.sleep(0.01)

    run(main())
    return Handler.seen


def test_of_the_batches_of_one_read_the_first_has_its_cost() -> None:
    assert costs(30, page=30, max_batch_records=10) == [(10, PAGE), (10, ReadCost()), (10, ReadCost())]


def test_a_batch_of_several_reads_has_the_sum_of_their_costs() -> None:
    [(size, cost)] = costs(30, page=10, min_batch_records=30, max_batch_wait=60)
    assert (size, cost) == (30, PAGE + PAGE + PAGE)
    assert cost.charges == {"units": 9.0}


def test_a_read_that_found_nothing_counts_in_the_next_batch() -> None:
    (_, first), (_, second) = costs(10, 10, page=10)
    assert first == PAGE
    assert (second.requests, second.charges) == (2, {"units": 6.0})
    assert second.seconds >= 2 * PAGE.seconds


def test_a_batch_has_the_latest_tokens_of_its_reads() -> None:
    first, second = ReadCost(requests=1, tokens={"session": "1"}), ReadCost(requests=1, tokens={"session": "2"})
    assert (first + second).tokens == {"session": "2"}
    assert (second + ReadCost(requests=1)).tokens == {"session": "2"}


def test_all_batches_of_a_read_have_its_tokens() -> None:
    class WithTokens(Charged):
        cost = ReadCost(requests=1, tokens={"session": "7"})

    found = costs(30, page=30, max_batch_records=10, source=WithTokens)
    assert [cost.requests for _, cost in found] == [1, 0, 0]
    assert [cost.tokens for _, cost in found] == [{"session": "7"}] * 3


def test_parts_and_pickled_copies_of_a_batch_keep_its_cost() -> None:
    batch = Batch.of("0", [b"1", b"2", b"3"], range(3))
    batch.read = PAGE
    parts = batch[1:], batch.take([0, 2]), batch.after(0), pickle.loads(pickle.dumps(batch))
    assert [part.read for part in parts] == [PAGE] * 4


async def test_a_file_of_the_log_is_a_request_of_its_bytes(tmp_path: Path) -> None:
    class Handler(Costs):
        seen: ClassVar[list[tuple[int, ReadCost]]] = []

    async with Producer(str(tmp_path / "log"), partitions=1) as producer:
        await producer.send_many([b"%d" % n for n in range(25_000)])
    await Processor(Handler, source=str(tmp_path / "log"), container=str(tmp_path / "state")).run(until_end=True)
    [file] = (tmp_path / "log").glob("partition=0/*.parquet")
    assert len(Handler.seen) > 1
    assert sum(cost.requests for _, cost in Handler.seen) == 1
    assert sum(cost.bytes for _, cost in Handler.seen) == file.stat().st_size
    assert all(cost.seconds > 0 for _, cost in Handler.seen[:1])
