"""A failure of a handler or a source affects only its record or its partition; the host goes on."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Sequence
from typing import Any, ClassVar

import anyio
import orjson
import pytest
import structlog

from actorproc import (
    Batch,
    CloseReason,
    Partition,
    PartitionContext,
    PartitionHandler,
    PartitionInfo,
    Processor,
    errors,
)
from actorproc.output.chain import LETTERS_LIMIT
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.processor.doubling import QUICK, Double, fed, rows


class Panic(BaseException):
    """As the bindings of other languages raise."""


@pytest.mark.parametrize("raised", [SystemExit(0), Panic("at once")])
@pytest.mark.parametrize("where", ["opened", "__init__", "shared", "schema_for"])
async def test_a_handler_that_raises_system_exit_fails(where: str, raised: BaseException) -> None:
    def leave(*_: Any) -> Any:
        raise raised

    async def leave_later(*_: Any) -> None:
        raise raised

    how: Any = {"opened": leave_later, "__init__": leave}.get(where, classmethod(leave))
    leaving: Any = type("Leaving", (Double,), {where: how})
    with pytest.raises(errors.ActorprocError, match=type(raised).__name__):
        await Processor(leaving, source=fed(2), container=Store(MemoryStore()), **QUICK).run(until_end=True)


@pytest.mark.parametrize("raised", [RuntimeError("cannot open"), Panic("cannot open")])
async def test_a_bug_in_one_partition_never_stops_the_others(raised: BaseException) -> None:
    class Buggy(Double):
        async def opened(self, ctx: PartitionInfo) -> None:
            if ctx.partition == "1":
                raise raised

        async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
            raise raised

    store, source = Store(MemoryStore()), fed(3)
    async with Processor(Buggy, name="Double", source=source, container=store, host="a", **QUICK) as processor:
        with anyio.fail_after(60):
            while len(await rows(store)) < 20:
                await anyio.sleep(0.01)
        assert processor.statistics().running


class Stray(Double):
    """Awaits something that was cancelled, once for each way to do so."""

    way: ClassVar[str] = ""
    struck: ClassVar[bool] = False

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        if self.way == "process":
            await self.strike()
        if self.way == "map":
            await ctx.map(batch, lambda record: self.strike())
        await super().process(batch, ctx)

    async def opened(self, ctx: PartitionInfo) -> None:
        if self.way == "opened":
            await self.strike()

    @classmethod
    async def strike(cls) -> None:
        if not cls.struck:
            cls.struck = True
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future


@pytest.mark.parametrize("way", ["process", "map", "opened"])
async def test_a_cancellation_out_of_something_awaited_is_a_failure_and_loses_nothing(way: str) -> None:
    Stray.way, Stray.struck = way, False
    store = Store(MemoryStore())
    with anyio.fail_after(60):
        await Processor(Stray, name="Double", source=fed(1), container=store, **QUICK).run(until_end=True)
    assert Stray.struck
    assert await rows(store) == [2 * n for n in range(10)]


async def test_a_source_that_cannot_list_its_partitions_for_a_while_stops_nothing() -> None:
    class Moody(MemorySource):
        calls = 0

        async def partitions(self) -> Sequence[str | Partition]:
            self.calls += 1
            if self.calls % 2 == 0:
                raise ConnectionError("not now")
            return await super().partitions()

    store, source = Store(MemoryStore()), Moody(1)
    settings = {**QUICK, "partition_refresh_interval": 0.01}
    async with Processor(Double, source=source, container=store, **settings):
        with anyio.fail_after(60):
            while source.calls < 6:
                await anyio.sleep(0.01)
            source.append("0", [b"1"])
            while await rows(store) != [2]:
                await anyio.sleep(0.01)


async def test_an_error_text_that_is_no_text_does_not_end_the_host() -> None:
    class Half(Double):
        async def opened(self, ctx: PartitionInfo) -> None:
            if ctx.partition == "0":
                raise ValueError("\ud800")

    store = Store(MemoryStore())
    processor = Processor(Half, source=fed(2), container=store, host="a", name="Double", **QUICK)
    with structlog.testing.capture_logs() as logs:
        async with processor:
            with anyio.fail_after(60):
                while len(await rows(store)) != 10:
                    await anyio.sleep(0.01)
                for _ in range(3):
                    await anyio.sleep(QUICK["lease_renew_interval"])
            assert processor.statistics().running
    assert any(r"ValueError: \ud800" in entry.get("error", "") for entry in logs)


async def test_a_dead_letter_too_large_for_a_footer_is_kept_whole() -> None:
    class Refusing(Double):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if len(record.value or b"") > 100:
                    ctx.dead_letter(record, "too long")
                else:
                    ctx.emit(record, {"n": 2 * record.json()})

    giant = random.Random(1).randbytes(LETTERS_LIMIT + 1)
    store, source = Store(MemoryStore()), MemorySource(1)
    source.append("0", [b"1", giant, b"2"])
    processor = Processor(Refusing, source=source, container=store, host="a", name="Double", **QUICK)
    await processor.run(until_end=True)
    (published,) = (await store.list("Double/dead-letters/")).entries
    (output,) = (await store.list("Double/output/")).entries
    assert output.size < 100_000
    (checkpoint,) = (await store.list("Double/checkpoints/")).entries
    await store.delete(published.key)  # as if its first owner had died right after the commit
    await store.delete(checkpoint.key)
    await Processor(Refusing, source=source, container=store, host="b", name="Double", **QUICK).run(until_end=True)
    stored = await store.get(published.key)
    assert stored is not None
    letter = orjson.loads(stored.body)
    assert (letter["sequence"], letter["encoding"], base64.b64decode(letter["value"]) == giant) == (1, "base64", True)
    assert await rows(store) == [2, 4]


@pytest.mark.parametrize("threaded", [False, True])
async def test_system_exit_in_a_handler_fails_the_record(threaded: bool) -> None:
    class InThread(PartitionHandler):
        output_schema = "n bigint"

        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if record.json() == 3:
                    raise SystemExit(2)
                ctx.emit(record, {"n": 2 * record.json()})

    class OnLoop(InThread):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:  # type: ignore[override]
            super().process(batch, ctx)

    store = Store(MemoryStore())
    exiting = InThread if threaded else OnLoop
    await Processor(exiting, source=fed(1), container=store, host="a", name="Double", **QUICK).run(until_end=True)
    assert await rows(store) == [2 * n for n in range(10) if n != 3]
    (letters,) = (await store.list("Double/dead-letters/")).entries
    stored = await store.get(letters.key)
    assert stored is not None
    assert "SystemExit: 2" in orjson.loads(stored.body)["error"]["message"]
