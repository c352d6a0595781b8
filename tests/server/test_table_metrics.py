"""Metrics of sinks that are tables."""

from __future__ import annotations

from pathlib import Path

import anyio
import httpx

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.server import http_app
from actorproc.testing.memory_source import MemorySource


class Copy(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": 1})


async def test_the_lag_of_a_table_is_a_metric(tmp_path: Path) -> None:
    source = MemorySource(2)
    table = {"url": "delta", "interval": 1}
    processor = Processor(Copy, name="Copy", source=source, container=tmp_path, sinks={"t": table}, commit_interval=0.1)
    transport = httpx.ASGITransport(app=http_app(processor))
    async with processor, httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        source.append("0", [b"1"] * 5)
        with anyio.fail_after(60):
            while True:
                lines = (await http.get("/metrics")).text.splitlines()
                found = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if 'sink="t"' in line}
                if found.get("actorproc_sink_rows_delivered_total") == 5.0:
                    break
                await anyio.sleep(0.1)
        for name in ("lag_commits", "lag_rows", "lag_seconds", "failing_partitions", "refusing_partitions"):
            assert found[f"actorproc_sink_{name}"] == 0.0
        (log,) = tmp_path.rglob("_delta_log")
        (log / f"{max(int(entry.stem) for entry in log.glob('*.json')) + 1:020}.json").write_text("broken")
        source.append("1", [b"1"] * 3)
        with anyio.fail_after(60):
            while not any(
                line.startswith("actorproc_sink_failing_partitions{") and line.endswith(" 1.0")
                for line in (await http.get("/metrics")).text.splitlines()
            ):
                await anyio.sleep(0.2)
