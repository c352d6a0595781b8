"""`shared`, `opened` and `closing`: when they are called, and the errors when they fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar

import anyio
import pytest
from pydantic import BaseModel

from actorproc import Batch, CloseReason, PartitionContext, PartitionHandler, PartitionInfo, Processor, errors
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource
from tests.processor.doubling import QUICK, Double, fed


async def test_a_failure_in_shared_names_the_handler_and_the_place() -> None:
    class Sharing(Double):
        @classmethod
        @asynccontextmanager
        async def shared(cls, options: Any) -> AsyncIterator[None]:
            if options is not None:
                raise ConnectionError("no database")
            yield

    with pytest.raises(
        errors.HandlerError, match=r"Sharing.shared failed: ConnectionError: no database \(in .*py:\d+\)"
    ):
        await Processor(Sharing, source=fed(), container=Store(MemoryStore()), **QUICK).run()


async def a_generator(cls: type[Double], options: Any) -> AsyncIterator[None]:
    yield


@contextmanager
def a_plain_one(cls: type[Double], options: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize("shared", [a_generator, a_plain_one])
async def test_a_shared_without_asynccontextmanager_is_refused(shared: Any) -> None:
    sharing = type("Sharing", (Double,), {"shared": classmethod(shared)})
    says = "Sharing.shared must return an async context manager.* with @asynccontextmanager"
    with pytest.raises(errors.HandlerDefinitionError, match=says):
        await Processor(sharing, source=fed(), container=Store(MemoryStore()), **QUICK).run(until_end=True)


async def test_an_error_at_the_end_of_shared_is_the_handlers() -> None:
    class Sharing(Double):
        @classmethod
        @asynccontextmanager
        async def shared(cls, options: Any) -> AsyncIterator[None]:
            yield
            raise BrokenPipeError("the pool is gone")

    with pytest.raises(
        errors.HandlerError, match=r"Sharing.shared failed: BrokenPipeError: the pool is gone \(in .*py:\d+\)"
    ):
        await Processor(Sharing, source=fed(), container=Store(MemoryStore()), **QUICK).run(until_end=True)

    class Tidy(Double):
        @classmethod
        @asynccontextmanager
        async def shared(cls, options: Any) -> AsyncIterator[None]:
            yield

    class Grouped(Double):
        @classmethod
        @asynccontextmanager
        async def shared(cls, options: Any) -> AsyncIterator[None]:
            async with anyio.create_task_group():
                yield

    class Refuses(MemorySource):
        async def register(self, processor: str, container: str) -> None:
            raise errors.UsageError("what comes after shared was entered")

    with pytest.raises(errors.UsageError, match="what comes after"):
        await Processor(Grouped, source=Refuses(1), container=Store(MemoryStore()), **QUICK).run()
    block = ValueError("the block's own")
    with pytest.raises(ValueError, match="the block's own"):
        async with Processor(Tidy, source=fed(), container=Store(MemoryStore()), **QUICK):
            raise block


async def test_hooks_options_and_shared_objects_of_a_host() -> None:
    events: list[str] = []

    class Hooked(PartitionHandler):
        instances: ClassVar[int] = 0

        class Options(BaseModel):
            factor: int

        def __init__(self) -> None:
            type(self).instances += 1

        @classmethod
        @asynccontextmanager
        async def shared(cls, options: Any) -> AsyncIterator[list[int]]:
            events.append(f"enter {options.factor}")
            yield []
            events.append("exit")

        async def opened(self, ctx: PartitionInfo) -> None:
            events.append(f"opened {ctx.partition}")

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.shared.append(ctx.options.factor * len(batch))
            events.append(f"process {ctx.partition} {len(ctx.shared)}")

        async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
            events.append(f"closing {ctx.partition} {reason.value}")

    processor = Processor(Hooked, source=fed(2), container=Store(MemoryStore()), options={"factor": "3"}, **QUICK)
    await processor.run(until_end=True)
    assert events[0] == "enter 3"
    assert events[-1] == "exit"
    assert sorted(e for e in events if e.startswith(("opened", "closing"))) == [
        "closing 0 stopping", "closing 1 stopping", "opened 0", "opened 1",
    ]  # fmt: skip
    assert {e.split()[2] for e in events if e.startswith("process")} == {"1", "2"}
    assert Hooked.instances == 2


async def test_every_hook_is_given_the_same_partition() -> None:
    given: dict[str, PartitionInfo] = {}

    class Keeps(PartitionHandler):
        output_schema = "n long"

        async def opened(self, ctx: PartitionInfo) -> None:
            given["opened"] = ctx

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            given["process"] = ctx

        async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
            given["closing"] = ctx

    await Processor(Keeps, source=fed(1), container=Store(MemoryStore()), **QUICK).run(until_end=True)
    for name in ("processor", "host", "partition", "epoch", "decoder", "output_schema", "processor_id"):
        first, *others = (getattr(ctx, name) for ctx in given.values())
        assert first, name
        assert others == [first, first]


async def test_closing_is_called_only_for_a_handler_that_was_opened() -> None:
    calls: list[str] = []

    class Unopened(Double):
        async def opened(self, ctx: PartitionInfo) -> None:
            calls.append("opened")
            raise ValueError("no")

        async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
            calls.append("closing")

    async with Processor(Unopened, source=fed(1), container=Store(MemoryStore()), host="a", **QUICK):
        with anyio.fail_after(60):
            while len(calls) < 2:
                await anyio.sleep(0.01)
    assert set(calls) == {"opened"}
