"""Hooks of an application, called by a host."""

from __future__ import annotations

import re
import threading
from typing import Any

import anyio
import pytest
import structlog

from actorproc import Batch, Event, Hooks, PartitionContext, PartitionHandler, Processor
from actorproc.cli.loading import load_hooks
from actorproc.errors import HandlerDefinitionError, StoreUnavailable, UsageError
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource

QUICK: dict[str, Any] = {"lease_acquire_interval": 1, "lease_renew_interval": 1, "lease_expiration_interval": 10}


class Doubles(PartitionHandler):
    """Refuses records that are no numbers."""

    output_schema = "n bigint"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": 2 * int(record.value or 0)})


class Notes(Hooks):
    """Notes all events; `called` are their kinds."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    @property
    def called(self) -> list[str]:
        return [event.kind for event in self.events]

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    async def acquired(self, event: Event) -> None:
        self.events.append(event)

    taken_over = released = caught_up = committed = dead_letters = acquired
    user_error = infrastructure_error = stuck = acquired


def processor(store: Store, hooks: Hooks, *values: bytes, clock: Any = None, **more: Any) -> Processor:
    source = more.pop("source", None)
    if source is None:
        source = MemorySource(1)
        source.append("0", values)
    more = (
        {"handler": Doubles, "host": "a", "name": "p", "clock": clock or VirtualClock("hooks"), "nudges": Nudges()}
        | QUICK
        | more
    )
    return Processor(more.pop("handler"), source=source, container=store, hooks=hooks, **more)


def test_one_partition_from_its_lease_to_its_release() -> None:
    notes = Notes()

    async def scenario() -> None:
        async with processor(Store(MemoryStore()), notes, b"1", b"x", b"3", dead_letter_limit=1):
            while "committed" not in notes.called:
                await anyio.sleep(1)

    run(scenario())
    assert [kind for kind in notes.called if kind != "user_error"] == [
        "acquired", "caught_up", "dead_letters", "committed", "released",
    ]  # fmt: skip
    assert notes.of("caught_up")[0].sequence == 2, "reached, and not committed yet"
    failed = notes.of("user_error")[0]
    assert (failed.partition, failed.fault, "invalid literal" in failed.reason) == ("0", "user", True)
    committed = notes.of("committed")[0]
    assert (committed.sequence, committed.rows, committed.dead_letters) == (2, 2, 1)
    assert "ValueError" in notes.of("dead_letters")[0].reason
    assert (notes.events[-1].reason, notes.events[-1].epoch) == ("handed over", 1)


def test_each_catch_up_after_a_backlog_is_reported_with_its_position() -> None:
    """Records that are processed at once, one after the other, are no backlog."""

    class Slow(Doubles):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            if len(batch) > 1:
                await anyio.sleep(20)

    notes, source = Notes(), MemorySource(1)

    async def scenario() -> None:
        async with processor(Store(MemoryStore()), notes, source=source, handler=Slow, commit_interval=5):
            await anyio.sleep(20)
            for number in range(10):
                source.append("0", [str(number).encode()])
                await anyio.sleep(6)
            source.append("0", [b"10", b"11", b"12"])
            await anyio.sleep(40)

    run(scenario())
    caught_up = notes.of("caught_up")
    assert [event.sequence for event in caught_up] == [-1, 12]
    assert caught_up[-1].position == notes.of("committed")[-1].position


def test_a_lease_of_a_dead_host_is_taken_over() -> None:
    first, second = Notes(), Notes()

    async def scenario() -> None:
        store, source = Store(MemoryStore()), MemorySource(1)
        async with anyio.create_task_group() as tasks:
            dying = processor(store, first, source=source)
            tasks.start_soon(dying.run)
            while "acquired" not in first.called:
                await anyio.sleep(1)
            tasks.cancel_scope.cancel()
        async with processor(store, second, source=source, host="b"):
            while "taken_over" not in second.called:
                await anyio.sleep(1)

    run(scenario())
    assert second.called[:2] == ["acquired", "taken_over"]
    assert re.fullmatch("a has not renewed for 1[01] s", second.events[1].reason)
    assert "taken_over" not in first.called


def test_a_failing_hook_is_logged_and_the_next_ones_are_called() -> None:
    class Failing(Notes):
        async def acquired(self, event: Event) -> None:
            raise RuntimeError("no such channel")

    notes = Failing()

    async def scenario() -> None:
        async with processor(Store(MemoryStore()), notes, b"1"):
            while "committed" not in notes.called:
                await anyio.sleep(1)

    with structlog.testing.capture_logs() as logs:
        run(scenario())
    assert [log["hook"] for log in logs if log["event"] == "hook.failed"] == ["acquired"]


def test_a_slow_hook_delays_no_commit_and_further_events_are_dropped() -> None:
    class Slow(Notes):
        async def caught_up(self, event: Event) -> None:
            await anyio.sleep(9)

        async def committed(self, event: Event) -> None:
            await anyio.sleep(1_000)

    async def scenario() -> int:
        source = MemorySource(1)
        host = processor(Store(MemoryStore()), Slow(), source=source, hook_queue=2)
        async with host:
            for number in range(20):
                source.append("0", [str(number).encode()])
                await anyio.sleep(6)
            return host.statistics().partitions[0].commits

    with structlog.testing.capture_logs() as logs:
        assert run(scenario()) == 20
    assert any("has not ended within 10 s" in log.get("why", "") for log in logs if log["event"] == "hook.failed")
    assert any(log["event"] == "hook.events_dropped" for log in logs)


async def test_a_plain_hook_runs_in_a_thread() -> None:
    threads: list[int] = []

    class Plain(Hooks):
        def acquired(self, event: Event) -> None:
            threads.append(threading.get_ident())

    from actorproc.runtime.clock import SYSTEM

    async with processor(Store(MemoryStore()), Plain(), clock=SYSTEM):
        with anyio.fail_after(20):
            while not threads:
                await anyio.sleep(0.01)
    assert threads != [threading.get_ident()]


def test_a_refused_heartbeat_is_an_infrastructure_error() -> None:
    class Refusing(MemoryStore):
        refusing = False

        async def put(self, key: str, body: bytes) -> str:
            if self.refusing and "/hosts/" in key:
                raise StoreUnavailable("no heartbeat is taken")
            return await super().put(key, body)

    notes, backend = Notes(), Refusing()

    async def scenario() -> None:
        async with processor(Store(backend), notes, store_patience=1):
            while "acquired" not in notes.called:
                await anyio.sleep(1)
            backend.refusing = True
            while "released" not in notes.called:
                await anyio.sleep(1)
            backend.refusing = False

    run(scenario())
    error = notes.of("infrastructure_error")[0]
    assert (error.partition, error.fault, error.reason) == (
        None,
        "infrastructure",
        "memory://: no heartbeat written within 1 s: no heartbeat is taken",
    )
    assert notes.of("released")[0].reason == "fenced"


def test_a_handler_that_hangs_is_stuck() -> None:
    class Hangs(PartitionHandler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await anyio.sleep_forever()

    notes = Notes()

    async def scenario() -> None:
        async with processor(Store(MemoryStore()), notes, b"1", handler=Hangs, max_process_time=20, max_handoff_time=1):
            while "stuck" not in notes.called:
                await anyio.sleep(1)

    run(scenario())
    assert (notes.of("stuck")[0].partition, notes.of("stuck")[0].fault) == ("0", "user")


def test_an_object_that_is_no_hooks_is_refused() -> None:
    with pytest.raises(UsageError, match=r"hooks = .*an object of a subclass of actorproc\.Hooks"):
        processor(Store(MemoryStore()), Notes)  # type: ignore[arg-type]
    with pytest.raises(HandlerDefinitionError, match=r"it must be, or make, an actorproc\.Hooks"):
        load_hooks("tests.host.test_hooks:Doubles")
    assert isinstance(load_hooks("tests.host.test_hooks:Notes"), Notes)
