"""`/metrics` of a dashboard: whole processors, whether hosts run or not."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from prometheus_client.parser import text_fd_to_metric_families

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer
from actorproc.config.settings import Settings
from actorproc.server import dashboard_app
from actorproc.testing.memory_source import MemorySource
from tests.server.fleet import NAME, FakeFleet


class Halves(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            if record.value == b"x":
                ctx.dead_letter(record, "x")
            ctx.emit(record, {"n": 1})


async def scraped(container: Path, **settings: Any) -> dict[tuple[str, str], float]:
    """Values by name (without the common prefix) and labels."""
    transport = httpx.ASGITransport(app=dashboard_app(str(container), Settings(**settings)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.get("/metrics")
    assert answer.status_code == 200, answer.text
    samples = [s for family in text_fd_to_metric_families(io.StringIO(answer.text)) for s in family.samples]
    assert all(sample.name.startswith("actorproc_processor_") for sample in samples)
    return {(s.name.removeprefix("actorproc_processor_"), " ".join(s.labels.values())): s.value for s in samples}


async def test_the_lag_is_there_when_no_host_runs(tmp_path: Path) -> None:
    log, container = str(tmp_path / "log"), tmp_path / "state"
    async with Producer(log, partitions=2) as producer:
        await producer.send_many([b"1", b"x", b"3"])
    for name in ("one", "two"):
        await Processor(Halves, name=name, source=log, container=container, dead_letter_limit=1).run(until_end=True)
    async with Producer(log) as producer:
        await producer.send_many([b"4"] * 5)
    found = await scraped(container)
    for name in ("one", "two"):
        assert found["hosts", name] == 0
        assert found["lag_records", name] == 5
        assert found["lag_seconds", name] > 0
        assert found["lag_unknown_partitions", name] == 0
        assert found["partitions", f"{name} unowned"] == 2
        assert (found["records", name], found["dead_letters", name]) == (3, 1)


async def test_the_lag_of_live_hosts_comes_from_their_reports(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    found = await scraped(tmp_path)
    assert found["hosts", NAME] == 2
    assert found["lag_records", NAME] == sum(number % 7 * 100 for number in range(16))
    assert found["partitions", f"{NAME} stuck"] == 1


async def test_partitions_of_a_source_that_cannot_be_asked_are_unknown(tmp_path: Path) -> None:
    source = MemorySource(3)
    source.append("0", [b"1"])
    await Processor(Halves, name="own", source=source, container=tmp_path).run(until_end=True)
    found = await scraped(tmp_path)
    assert (found["lag_unknown_partitions", "own"], found["lag_records", "own"]) == (3, 0)
    assert ("lag_seconds", "own") not in found


async def test_a_source_is_asked_once_in_lag_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from actorproc.server.processor_metrics import ProcessorMetrics

    log, container, asked = str(tmp_path / "log"), tmp_path / "state", list[str]()
    async with Producer(log, partitions=1) as producer:
        await producer.send_many([b"1"])
    await Processor(Halves, name="one", source=log, container=container).run(until_end=True)

    async def ask(self: ProcessorMetrics, processor: str, partitions: Any) -> dict[str, Any]:
        asked.append(processor)
        return {}

    monkeypatch.setattr(ProcessorMetrics, "_ask", ask)
    app = dashboard_app(str(container), Settings(lag_interval=0.2))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as http:
        for _ in range(2):
            await http.get("/metrics")
        assert asked == ["one"]
        await anyio.sleep(0.25)
        await http.get("/metrics")
    assert asked == ["one", "one"]
