"""The lag of chained processors from the first source on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import anyio
import httpx
import orjson

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer, Settings
from actorproc.admin.chain_lag import ChainLag
from actorproc.admin.fleet import Fleet
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.output.chain import OutputChain
from actorproc.output.schema_document import read_schema
from actorproc.output.source_identity import SourceRecord
from actorproc.server import dashboard_app, http_app
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import OUTPUT_SCHEME, open_store
from tests.cli.conftest import Run
from tests.server.fleet import NAME, FakeFleet

QUICK: dict[str, Any] = {
    "commit_interval": 0.25,
    "lease_renew_interval": 0.2,
    "lease_acquire_interval": 0.2,
    "poll_interval": 0.05,
}
AGE = 500.0
"""Seconds before now at which the first record was made."""


class Copies(PartitionHandler):
    output_schema = "value string"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"value": "x"})


class Waits(Copies):
    """Holds its batch until it is let go."""

    go: ClassVar[anyio.Event]

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        await self.go.wait()
        await super().process(batch, ctx)


async def fleet_of(container: Path, name: str) -> Fleet:
    settings, layout = Settings(), ProcessorLayout(name)
    async with open_store(str(container), settings) as store, ChainLag(store, layout, settings) as chain:
        return await chain.add(await FleetWatch(store, layout, 60.0).look())


async def test_a_record_that_waits_in_the_third_processor_is_as_old_as_in_the_first_source(tmp_path: Path) -> None:
    log, state = str(tmp_path / "log"), tmp_path / "state"
    async with Producer(log, partitions=1) as producer:
        await producer.send(b"1", timestamp=datetime.now(UTC) - timedelta(seconds=AGE))
    before = f"{OUTPUT_SCHEME}file://{state}"
    first = Processor(Copies, name="one", source=log, container=state, **QUICK)
    second = Processor(Copies, name="two", source=f"{before}/one", container=state, **QUICK)
    Waits.go = anyio.Event()
    third = Processor(Waits, name="three", source=f"{before}/two", container=state, **QUICK)
    async with first:
        await schema_of(state, "one")
        async with second:
            await schema_of(state, "two")
            async with third:
                await check(third, state)
    async with open_store(str(state), Settings()) as store:
        for name in ("one", "two", "three"):
            commit = await OutputChain(store, ProcessorLayout(name), "0").read(0)
            assert commit is not None
            assert commit.oldest is not None
            assert AGE <= commit.time - commit.oldest < AGE + 120


async def schema_of(state: Path, name: str) -> None:
    """Wait until a next processor can read the output."""
    async with open_store(str(state), Settings()) as store:
        with anyio.fail_after(60):
            while await read_schema(store, ProcessorLayout(name)) is None:
                await anyio.sleep(0.05)


async def check(third: Processor, state: Path) -> None:
    """The third processor holds the record; then it is let go."""
    with anyio.fail_after(60):
        while not (found := await fleet_of(state, "three")).lag_seconds:
            await anyio.sleep(0.05)
    assert found.lag_seconds_end_to_end is not None
    assert found.lag_seconds_end_to_end >= AGE
    assert found.lag_seconds < AGE / 2, "since the commit of the second"
    transport = httpx.ASGITransport(app=http_app(third))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        metrics = (await http.get("/metrics")).text
    line = next(line for line in metrics.splitlines() if line.startswith("actorproc_lag_end_to_end_seconds{"))
    assert float(line.rpartition(" ")[2]) >= AGE
    Waits.go.set()
    with anyio.fail_after(60):
        while (await fleet_of(state, "three")).lag_seconds_end_to_end != 0.0:
            await anyio.sleep(0.05)


async def chained(tmp_path: Path) -> tuple[FakeFleet, FakeFleet]:
    """Two fleets; the second one reads the output of the first, and has no lag of its own but in partition 4."""
    first, second = (tmp_path / "first"), (tmp_path / "second")
    fleets = FakeFleet(first), FakeFleet(second)
    source = SourceRecord(f"{OUTPUT_SCHEME}file://{first}/{NAME}", put_id="s")
    async with open_store(str(second), Settings()) as store:
        await store.put(ProcessorLayout(NAME).origin, source.to_json())
    async with open_store(str(first), Settings()) as store:
        await store.put(ProcessorLayout(NAME).origin, SourceRecord("kafka://broker/topic", put_id="s").to_json())
    return fleets


def by_partition(fleet: Fleet) -> dict[str, float | None]:
    return {name: view.lag_seconds_end_to_end for name, view in fleet.partitions.items()}


async def test_what_waits_before_counts_though_nothing_waits_here(tmp_path: Path) -> None:
    first, second = await chained(tmp_path)
    await first.write(lag=10, lag_seconds=70.0)
    await second.write(lag=0, lag_seconds=0.0)
    fleet = await fleet_of(tmp_path / "second", NAME)
    assert fleet.partitions["1"].lag_seconds == 0.0
    assert by_partition(fleet) == dict.fromkeys(fleet.partitions, 70.0) | {"3": 4.5, "5": 7.5}  # of `FakeFleet`
    await second.write(lag=3, lag_seconds=5.0, lag_seconds_end_to_end=90.0)
    assert by_partition(await fleet_of(tmp_path / "second", NAME))["1"] == 90.0


async def test_it_is_unknown_while_nobody_runs_the_processor_before(tmp_path: Path) -> None:
    first, second = await chained(tmp_path)
    await first.write(["host-00"], lag=10, lag_seconds=70.0)  # the other one is silent
    await second.write(lag=0, lag_seconds=0.0)
    found = by_partition(await fleet_of(tmp_path / "second", NAME))
    assert (found["2"], found["1"]) == (70.0, None)


async def test_the_first_processor_of_a_chain_has_none(tmp_path: Path) -> None:
    first, _ = await chained(tmp_path)
    await first.write()
    fleet = await fleet_of(tmp_path / "first", NAME)
    assert not fleet.is_chained
    assert fleet.lag_seconds_end_to_end is None


def test_status_top_and_the_dashboard_show_it(tmp_path: Path, run: Run) -> None:
    async def prepare() -> None:
        first, second = await chained(tmp_path)
        await first.write(lag=10, lag_seconds=7000.0)
        await second.write(lag=0, lag_seconds=0.0)

    anyio.run(prepare)
    place = ["--name", NAME, "--container", tmp_path / "second"]
    status = orjson.loads(run("status", *place, "--json").stdout)
    assert status["lag_seconds_end_to_end"] == 7000.0
    assert status["partitions"][0]["lag_seconds_end_to_end"] == 7000.0
    for shown in (run("status", *place).stdout, run("top", *place, "--once").stdout):
        assert "end to end" in shown
        assert "116 min" in shown
    first = run("top", "--name", NAME, "--container", tmp_path / "first", "--once").stdout
    assert "end to end" not in first

    async def scraped() -> tuple[str, Any]:
        transport = httpx.ASGITransport(app=dashboard_app(str(tmp_path / "second"), Settings()))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            return (await http.get("/metrics")).text, (await http.get(f"/api/processors/{NAME}")).json()

    metrics, view = anyio.run(scraped)
    assert f'actorproc_processor_lag_end_to_end_seconds{{processor="{NAME}"}} 7000.0' in metrics
    assert view["is_chained"]
    assert view["partitions"][0]["lag_seconds_end_to_end"] == 7000.0
