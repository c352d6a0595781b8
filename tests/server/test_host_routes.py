"""Health, metrics and state of a host over HTTP."""

from __future__ import annotations

import asyncio
import io
import re
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_fd_to_metric_families
from starlette.routing import Route

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.records import ReadCost
from actorproc.runtime.clock import Clock
from actorproc.server import http_app
from actorproc.server.serving import LoopBeat, serving
from actorproc.sources.protocol import Chunk
from actorproc.storage.backend import Stored
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.stores.s3_errors import Answer, answered
from actorproc.testing.memory_source import MemorySource

TOKEN = "w" * 16
QUICK: dict[str, Any] = {
    "lease_renew_interval": 2.0, "lease_acquire_interval": 1.0, "lease_expiration_interval": 20.0,
    "rebalance_delay": 0.1, "commit_interval": 0.1, "loop_block_warning": 0.5,
}  # fmt: skip


class Copy(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            if record.value == b"block":
                time.sleep(2)
            if (record.value or b"").startswith(b"hang"):
                await anyio.sleep(1000)
            ctx.emit(record, {"n": 1})


def host(folder: Path, values: list[bytes], **settings: Any) -> Processor:
    source = MemorySource(2)
    source.append("0", values)
    return Processor(Copy, source=source, container=folder, host="h", **QUICK | settings)


@asynccontextmanager
async def client(processor: Processor) -> AsyncIterator[httpx.AsyncClient]:
    """Of an app that is mounted in another one, as `http://test`."""
    transport = httpx.ASGITransport(http_app(processor))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as opened:
        yield opened


async def until(there: Any) -> None:
    with anyio.fail_after(60):
        while not await there():
            await anyio.sleep(0.05)


async def test_a_host_is_ready_once_it_has_joined(tmp_path: Path) -> None:
    processor = host(tmp_path, [b"1"] * 10)
    async with client(processor) as http:
        before = await http.get("/readyz")
        assert (before.status_code, before.json()["problems"][0]["problem"]) == (503, "stopped")
        async with processor:

            async def committed() -> bool:
                state = (await http.get("/state")).json()
                return bool(state["counts"]["rows"] == 10 and state["partitions"][0]["lag"] == 0)

            await until(committed)

            async def ready() -> bool:
                return bool((await http.get("/readyz")).json() == {"ready": True, "problems": []})

            await until(ready)
            assert (await http.get("/livez")).status_code == 200
            text = (await http.get("/metrics")).text
    values = {s.name: s.value for family in text_fd_to_metric_families(io.StringIO(text)) for s in family.samples}
    assert values["actorproc_records_processed_total"] == 10
    assert values["messaging_client_consumed_messages_total"] == 10
    assert values["actorproc_commit_duration_seconds_count"] >= 1
    assert values["actorproc_lag_records"] == 0
    assert values["actorproc_host_running"] == 1
    assert not any("partition_" in name for name in values)


async def test_the_cost_of_reading_and_throttled_requests_are_metrics(tmp_path: Path) -> None:
    class Charged(MemorySource):
        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            async with aclosing(super().read(partition, position)) as chunks:
                async for chunk in chunks:
                    if len(chunk.batch):
                        self.throttled += 1
                    yield replace(chunk, cost=ReadCost(bytes=7, requests=2, charges={"request_units": 1.5}))

    class Overloaded(MemoryStore):
        refusals = 2

        async def get(self, key: str, **how: Any) -> Stored | None:
            if "checkpoints" in key and self.refusals:
                self.refusals -= 1
                raise answered("get", Answer(503, "SlowDown", "reduce your request rate"))
            return await super().get(key, **how)

    source = Charged(1)
    source.append("0", [b"1"] * 10)
    processor = Processor(Copy, source=source, container=Store(Overloaded()), host="h", **QUICK)
    async with processor, client(processor) as http:

        async def values() -> dict[str, float]:
            text = (await http.get("/metrics")).text
            families = text_fd_to_metric_families(io.StringIO(text))
            return {s.name + str(s.labels.get("charge") or s.labels.get("cause") or ""): s.value
                    for family in families for s in family.samples}  # fmt: skip

        async def read() -> bool:
            return (await values())["actorproc_source_requests_total"] >= 4

        await until(read)
        found = await values()
    reads = found["actorproc_source_requests_total"] / 2
    assert found["actorproc_source_charges_totalrequest_units"] == 1.5 * reads
    assert found["actorproc_source_bytes_total"] == 7 * reads
    assert found["actorproc_source_throttled_total"] == 1
    assert found["actorproc_store_failures_totalthrottled"] == 2


async def test_the_lag_is_known_in_records_and_bytes_while_a_handler_hangs(tmp_path: Path) -> None:
    values = [b"hang" + b"x" * 96] * 3 + [b"hang"]
    processor = host(tmp_path, values, max_handoff_time=0)
    async with processor, client(processor) as http:

        async def lag() -> tuple[float, float]:
            text = (await http.get("/metrics")).text
            found = {f.name: f.samples[0].value for f in text_fd_to_metric_families(io.StringIO(text)) if f.samples}
            return found["actorproc_lag_records"], found["actorproc_lag_bytes"]

        async def known() -> bool:
            return (await lag())[0] == 4

        await until(known)
        assert sum(map(len, values)) < (await lag())[1] < 2 * sum(map(len, values))  # with keys, headers and times


async def test_openmetrics_and_series_of_partitions_are_offered(tmp_path: Path) -> None:
    processor = host(tmp_path, [b"1"], http_partition_metrics=True)
    async with processor, client(processor) as http:

        async def shown() -> bool:
            accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
            text = (await http.get("/metrics", headers=accept)).text
            families = {f.name: f for f in parse_openmetrics(text)}  # type: ignore[no-untyped-call]
            lags = families["actorproc_partition_lag_records"].samples
            return {sample.labels["partition"] for sample in lags} == {"0", "1"}

        await until(shown)


async def test_a_stuck_partition_is_named_with_its_reason(tmp_path: Path) -> None:
    processor = host(tmp_path, [b"hang"], max_process_time=0.5, restart_backoff=5.0)
    async with processor, client(processor) as http:

        async def stuck() -> bool:
            answer = await http.get("/readyz")
            found = answer.json()["problems"]
            return answer.status_code == 503 and [(p["problem"], p.get("partition")) for p in found] == [("stuck", "0")]

        await until(stuck)
        (problem,) = (await http.get("/readyz")).json()["problems"]
        assert "max_process_time = 0.5 s" in problem["reason"]
        assert problem["since"] <= time.time()


async def test_a_plain_handler_that_hangs_is_named_too(tmp_path: Path) -> None:
    hang = threading.Event()

    class Hangs(PartitionHandler):
        output_schema = "n long"

        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            hang.wait()

    source = MemorySource(2)
    source.append("0", [b"1"])
    settings = {**QUICK, "max_process_time": 0.5}
    processor = Processor(Hangs, source=source, container=tmp_path, host="h", **settings)
    async with processor, client(processor) as http:
        try:

            async def stuck() -> bool:
                found = (await http.get("/readyz")).json()["problems"]
                return [(p["problem"], p.get("partition")) for p in found] == [("stuck", "0")]

            await until(stuck)
        finally:
            hang.set()


async def test_a_blocked_event_loop_is_reported_by_the_servers_own_thread(tmp_path: Path) -> None:
    processor = host(tmp_path, [b"block"])
    found: list[Any] = []

    def ask(url: str) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not found:
            problems = httpx.get(f"{url}readyz").json()["problems"]
            found.extend(p for p in problems if p["problem"] == "blocked")
            time.sleep(0.05)

    async with serving(processor, "127.0.0.1", 0) as url, anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, ask, url)
        async with processor:
            await anyio.sleep(3)
            tasks.cancel_scope.cancel()
    assert found
    assert "in the handler: partition 0" in found[0]["reason"]
    assert found[0]["since"] <= time.time()


async def test_a_clock_jump_does_not_make_the_loop_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(asyncio.new_event_loop()) as never_runs:
        beat = LoopBeat(never_runs)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beat.ask)
            await anyio.sleep(0.01)
            monkeypatch.setattr(Clock, "wall", lambda _: time.time() + 3600)
            assert 0 < beat.silence() < 60
            tasks.cancel_scope.cancel()


async def test_state_comes_as_events_while_it_changes(tmp_path: Path) -> None:
    processor = host(tmp_path, [b"1"])
    async with (
        processor,
        serving(processor, "127.0.0.1", 0) as url,
        httpx.AsyncClient(base_url=url) as http,
        http.stream("GET", "/events") as events,
    ):
        lines = events.aiter_lines()
        assert await anext(lines) == "event: state"
        assert '"processor":"Copy"' in await anext(lines)


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/state", None, 401),
        ("/state", "wrong" * 4, 401),
        ("/state", "r" * 16, 200),
        ("/metrics", TOKEN, 200),
        ("/livez", None, 200),
        ("/", None, 200),
    ],
)
async def test_everything_but_the_probes_asks_for_a_token(
    tmp_path: Path, path: str, token: str | None, status: int
) -> None:
    async with client(host(tmp_path, [], http_token=TOKEN, http_read_token="r" * 16)) as http:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        assert (await http.get(path, headers=headers)).status_code == status


async def test_a_probe_without_a_token_gets_no_reasons(tmp_path: Path) -> None:
    async with client(host(tmp_path, [], http_token=TOKEN)) as http:
        assert (await http.get("/readyz")).json() == {"ready": False}
        assert (await http.get("/readyz", headers={"Authorization": f"Bearer {TOKEN}"})).json()["problems"]


async def test_no_answer_of_any_route_contains_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AMQP_PASSWORD", "AZURE_STORAGE_CONNECTION_STRING"):
        monkeypatch.setenv(name, "very-secret-of-the-environment")
    file = tmp_path / "token"
    file.write_text("very-secret-token-of-a-file\n")
    registry = {"basic.auth.user.info": "ann:very-secret-password"}
    processor = host(
        tmp_path / "state", [b"1"], http_token=f"@{file}", schema_registry="http://127.0.0.1:1",
        schema_registry_options=registry, http_partition_metrics=True,
    )  # fmt: skip
    headers = {"Authorization": "Bearer very-secret-token-of-a-file"}
    routes = [route for route in http_app(processor).routes if isinstance(route, Route)]
    fields = {"name": "Copy", "partition": "0", "action": "replay"}
    async with processor, serving(processor, "127.0.0.1", 0) as url, httpx.AsyncClient(base_url=url) as http:
        for route in routes:
            path = re.sub(r"{(\w+)(:path)?}", lambda found: fields[found[1]], route.path)
            method = "POST" if "POST" in (route.methods or ()) else "GET"
            given: dict[str, Any] = {"headers": headers, "json": {"all": True}, "params": {"id": "0:0"}}
            async with http.stream(method, path, **given) as answer:
                first = await anext(answer.aiter_bytes())  # an event stream does not end
                assert answer.status_code in (200, 400, 503), f"{path}: {first!r}"
                assert b"very-secret" not in first, path
                assert "very-secret" not in str(answer.headers), path
    assert len(routes) >= 21


async def test_without_a_token_only_loopback_names_are_answered(tmp_path: Path) -> None:
    processor = host(tmp_path, [])
    async with serving(processor, "127.0.0.1", 0) as url, httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/state")).status_code == 200
        assert (await http.get("/state", headers={"Host": "rebound.example"})).status_code == 403
