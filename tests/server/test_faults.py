"""Faults show within one heartbeat in `/readyz`, metrics, dashboard, `status` and `explain`, and then they heal."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import anyio
import httpx
import pytest
from prometheus_client.parser import text_fd_to_metric_families

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.admin.explain import explain
from actorproc.admin.fleet import Fleet
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.errors import CredentialsExpired, StoreRefused, StoreUnavailable
from actorproc.runtime.nudge import Nudges
from actorproc.server import http_app
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.sources.protocol import Chunk
from actorproc.storage.backend import Listing, Stored
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource

LAYOUT = ProcessorLayout("Copy")
HEARTBEAT = 13.0
EXPIRATION = 60.0
SETTINGS: dict[str, Any] = {
    "lease_renew_interval": HEARTBEAT, "lease_expiration_interval": EXPIRATION, "max_process_time": 60.0,
    "max_read_time": 60.0, "restart_backoff_max": 5.0, "dead_letter_limit": 0.5, "max_attempts": 2,
    "http_partition_metrics": True, "commit_interval": 10.0,
}  # fmt: skip

Refusal = Callable[[str, str], Exception | None]
"""The error that the store raises for a verb and a key, if any."""


class Copy(PartitionHandler):
    output_schema = "n long"
    broken: Exception | None = None
    frozen = False

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        if ctx.partition == "0" and self.frozen:
            await anyio.sleep_forever()
        for record in batch:
            if ctx.partition == "0" and self.broken is not None:
                raise self.broken
            ctx.emit(record, {"n": int(record.value or b"")})


class Stream(MemorySource):
    hung = False

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().read(partition, position):
            if self.hung and partition == "0":
                await anyio.sleep_forever()
            yield chunk


class Refusing(MemoryStore):
    """A store as one host sees it: `refusal` fails requests. Others see the same objects through `truth`."""

    def __init__(self, truth: MemoryStore, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self._space = truth._space
        self.refusal: Refusal = lambda verb, key: None

    def _check(self, verb: str, key: str) -> None:
        if (error := self.refusal(verb, key)) is not None:
            raise error

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        self._check("get", key)
        return await super().get(key, unless=unless, tail=tail)

    async def put(self, key: str, body: bytes) -> str:
        self._check("put", key)
        return await super().put(key, body)

    async def put_if_absent(self, key: str, body: bytes) -> str:
        self._check("put", key)
        return await super().put_if_absent(key, body)

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        self._check("put", key)
        return await super().put_if_match(key, body, tag)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        self._check("list", prefix)
        return await super().list(prefix, after, limit)


class World:
    """One host with two partitions, five records each five seconds in both, and a viewer elsewhere."""

    def __init__(self) -> None:
        self.clock = VirtualClock("a")
        truth = MemoryStore(clock=self.clock)
        self.backend = Refusing(truth, self.clock)
        self.outside = Store(truth, clock=self.clock)
        self.source = Stream(2)
        self.handler: type[Copy] = type("Copy", (Copy,), {})
        self.processor = Processor(
            self.handler, source=self.source, container=Store(self.backend, clock=self.clock), host="a",
            clock=self.clock, nudges=Nudges(), **SETTINGS,
        )  # fmt: skip
        self.appended = 0

    async def append_forever(self) -> None:
        while True:
            at = datetime.fromtimestamp(self.clock.wall(), UTC)
            for partition in ("0", "1"):
                values: list[bytes | None] = [str(self.appended + n).encode() for n in range(5)]
                self.source.append(partition, values, timestamp=at)
            self.appended += 5
            await self.clock.sleep(5.0)

    async def look(self) -> Seen:
        transport = httpx.ASGITransport(http_app(self.processor))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            ready, metrics = (await http.get("/readyz")).json(), (await http.get("/metrics")).text
        families = text_fd_to_metric_families(io.StringIO(metrics))
        values = {(s.name, s.labels.get("partition")): s.value for family in families for s in family.samples}
        fleet = await FleetWatch(self.outside, LAYOUT, EXPIRATION).look()
        status = await FleetWatch(self.outside, LAYOUT, EXPIRATION).read_all()
        return Seen(ready["problems"], values, fleet, status)


class Seen(NamedTuple):
    problems: list[dict[str, Any]]
    metrics: dict[tuple[str, str | None], float]
    fleet: Fleet
    status: Fleet

    def explained(self, partition: str) -> str:
        return explain(self.fleet.partitions[partition], self.fleet.hosts, self.fleet.time)


class Fault(NamedTuple):
    """`begin` breaks something; within `after` seconds everything names it. `of`: the partition, or None: the host."""

    begin: Callable[[World], None]
    after: float
    problem: str
    verdict: str
    reason: str
    of: str | None = "0"


def refuse(
    error: Exception, verbs: tuple[str, ...] = ("get", "put", "list"), part: str = ""
) -> Callable[[World], None]:
    def begin(world: World) -> None:
        world.backend.refusal = lambda verb, key: error if verb in verbs and part in key else None

    return begin


def set_handler(**changes: Any) -> Callable[[World], None]:
    def begin(world: World) -> None:
        for name, value in changes.items():
            setattr(world.handler, name, value)

    return begin


def hang_reads(world: World) -> None:
    world.source.hung = True


FULL, DENIED = StoreUnavailable("No space left on device"), StoreRefused("AccessDenied")
FAULTS = {
    "a frozen handler": Fault(set_handler(frozen=True), 60, "stuck", "stuck", "max_process_time = 60 s"),
    "a hung read": Fault(hang_reads, 2 * 60, "stuck", "stuck", "max_read_time = 60 s"),  # it is read anew before
    "a dead store": Fault(refuse(StoreUnavailable("503")), EXPIRATION / 2, "away", "silent", "503", None),
    "an expired credential": Fault(
        refuse(CredentialsExpired("ExpiredToken")), EXPIRATION / 2, "away", "silent", "ExpiredToken", None
    ),
    "a full disk": Fault(refuse(FULL, ("put",)), EXPIRATION / 2, "away", "silent", "No space left", None),
    "a poisoned partition": Fault(
        set_handler(broken=ValueError("poison")), 120, "failing", "failing", "ValueError, such as: poison"
    ),
    "no right to write output": Fault(
        refuse(DENIED, ("put",), "/output/partition=0"), 2 * HEARTBEAT, "failing", "failing", "AccessDenied"
    ),
    "no right to write checkpoints": Fault(
        refuse(DENIED, ("put",), "/checkpoints/0"), 100, "failing", "failing", "AccessDenied"
    ),
    "no right to write heartbeats": Fault(
        refuse(DENIED, ("put",), "/hosts/"), EXPIRATION / 2, "away", "silent", "AccessDenied", None
    ),
    "no right to read the group": Fault(
        refuse(DENIED, ("get",), "group.json"), 2 * HEARTBEAT, "away", "ok", "AccessDenied", None
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named_with_partition_reason_and_time_and_heals(fault: Fault) -> None:
    async def main() -> None:
        world = World()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.append_forever)
            tasks.start_soon(world.processor.run)
            await world.clock.sleep(61.0)
            assert (await world.look()).problems == []
            began = world.clock.wall()
            fault.begin(world)
            await world.clock.sleep(fault.after + HEARTBEAT)
            check_named(await world.look(), fault, began)
            world.backend.refusal = lambda verb, key: None
            world.source.hung, world.handler.frozen, world.handler.broken = False, False, None
            await world.clock.sleep(90.0)
            check_healed(await world.look(), world.appended)
            world.processor.stop()
            await world.clock.sleep(30.0)
            tasks.cancel_scope.cancel()

    run(main())


def test_a_frozen_handler_shows_within_half_an_interval_whenever_it_freezes() -> None:
    async def shown_after(offset: float) -> float:
        world = World()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.append_forever)
            tasks.start_soon(world.processor.run)
            await world.clock.sleep(40.0 + offset)
            world.handler.frozen, began = True, world.clock.wall()
            await world.clock.sleep(60.0)
            error: str | None = None
            while error is None:
                await world.clock.sleep(0.5)
                error = (await FleetWatch(world.outside, LAYOUT, EXPIRATION).read_all()).partitions["0"].error
            tasks.cancel_scope.cancel()
        assert "max_process_time" in (error or "")
        return world.clock.wall() - began

    seconds = [run(shown_after(offset)) for offset in (0.0, 2.0, 5.0, 9.0, 12.0)]
    assert max(seconds) <= 60.0 + 5.0 + HEARTBEAT / 2 + 1.0  # it freezes with the next records, after up to 5 s


def check_named(seen: Seen, fault: Fault, began: float) -> None:
    (problem,) = [p for p in seen.problems if (p["problem"], p.get("partition")) == (fault.problem, fault.of)]
    assert fault.reason in problem["reason"]
    assert began - HEARTBEAT <= problem["since"] <= began + fault.after
    view, other = seen.fleet.partitions["0"], seen.fleet.partitions["1"]
    assert view.verdict == fault.verdict
    if fault.begin is hang_reads:
        assert "The source does not answer a" in seen.explained("0")
    if fault.of is not None:
        assert seen.metrics["actorproc_partition_troubled", "0"] == 1
        assert seen.metrics["actorproc_partition_troubled", "1"] == 0
        assert other.verdict == "ok"
        status = seen.status.partitions["0"]
        assert fault.reason in view.reason
        assert fault.reason in (status.error or "")
        assert view.since is not None
        assert began - HEARTBEAT <= view.since <= began + fault.after
        assert status.since == view.since
        assert f"has been {fault.verdict} for " in seen.explained("0")
        assert fault.reason in seen.explained("0")
        assert "Nothing is committed" not in seen.explained("0")
    else:
        assert seen.metrics["actorproc_host_failing", None] == 1
        (host,) = seen.fleet.hosts
        if fault.verdict == "silent":
            assert "a has been silent for " in seen.explained("0")
            assert host.age is not None
            assert host.age > EXPIRATION / 2
        else:
            assert fault.reason in (host.error or "")
            assert host.error_since == problem["since"]
            assert fault.reason in (seen.status.hosts[0].error or "")
            assert f"for {seen.fleet.time - problem['since']:.0f} s: AccessDenied" in seen.explained("0")


def check_healed(seen: Seen, appended: int) -> None:
    assert seen.problems == []
    assert {view.verdict for view in seen.fleet.partitions.values()} == {"ok"}
    assert all(found.error is None for found in seen.status.partitions.values())
    assert all((found.sequence or 0) > appended - 60 for found in seen.status.partitions.values())
