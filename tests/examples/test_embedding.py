"""The FastAPI example, as a server would run it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import anyio
import httpx
import orjson
import pytest
import structlog

from actorproc import Capture, Processor, Producer
from actorproc.errors import Fenced, SourceError, UsageError
from actorproc.sources import LogSource
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource


async def test_a_service_processes_a_stream_in_its_lifespan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE", str(tmp_path / "events"))
    monkeypatch.setenv("CONTAINER", str(tmp_path / "state"))
    monkeypatch.setenv("ACTORPROC_POLL_INTERVAL", "50ms")
    from examples.fastapi_service import app

    async with Producer(str(tmp_path / "events"), partitions=2) as producer:
        await producer.send(orjson.dumps({"user": "ada", "action": "login"}), key=b"ada")
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client,
    ):
        with anyio.fail_after(60):
            while (await client.get("/users/ada")).json()["events_here"] != 1:
                await anyio.sleep(0.02)
        assert (await client.get("/health")).status_code == 200
        statistics = (await client.get("/statistics")).json()
        assert statistics["processor"] == "Users"
        assert [p["partition"] for p in statistics["partitions"]] == ["0", "1"]
    assert list((tmp_path / "state" / "Users" / "output").rglob("*.parquet"))


async def test_a_service_whose_host_was_replaced_says_that_it_is_not_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE", str(tmp_path / "events"))
    monkeypatch.setenv("CONTAINER", str(tmp_path / "state"))
    monkeypatch.setenv("ACTORPROC_LEASE_RENEW_INTERVAL", "50ms")
    from examples.fastapi_service import Users, app

    async with Producer(tmp_path / "events", partitions=2):
        pass
    begun, ended = anyio.Event(), anyio.Event()

    async def serve() -> None:
        with pytest.RaisesGroup(Fenced):
            async with app.router.lifespan_context(app):
                begun.set()
                await anyio.sleep_forever()
        ended.set()

    async with (
        anyio.create_task_group() as tasks,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client,
    ):
        tasks.start_soon(serve)
        with anyio.fail_after(60):
            await begun.wait()
            while (await client.get("/health")).status_code != 200:
                await anyio.sleep(0.02)
            host = app.state.processor.host
            async with Processor(Users, source=tmp_path / "events", container=tmp_path / "state", host=host):
                await ended.wait()
        assert (await client.get("/health")).status_code == 503


async def test_an_unhealthy_service_says_why_until_it_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE", str(tmp_path / "events"))
    monkeypatch.setenv("CONTAINER", str(tmp_path / "state"))
    monkeypatch.setenv("ACTORPROC_LEASE_ACQUIRE_INTERVAL", "200ms")
    from examples.fastapi_service import app

    async with Producer(tmp_path / "events", partitions=2):
        pass

    async def away(self: LogSource) -> Sequence[str]:
        raise SourceError("the log is away")

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        with monkeypatch.context() as patched, anyio.fail_after(60):
            patched.setattr(LogSource, "partitions", away)
            async with app.router.lifespan_context(app):
                while (found := await client.get("/health")).json() != {"running": True, "error": "the log is away"}:
                    await anyio.sleep(0.02)
                assert found.status_code == 503
                patched.undo()
                while (found := await client.get("/health")).status_code != 200:
                    await anyio.sleep(0.02)
                assert found.json() == {"running": True, "error": None}


async def test_a_service_answers_while_its_store_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE", str(tmp_path / "events"))
    monkeypatch.setenv("CONTAINER", "s3://bucket/state")
    monkeypatch.setenv("ACTORPROC_S3_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("ACTORPROC_S3_ACCESS_KEY", "a" * 16)
    monkeypatch.setenv("ACTORPROC_S3_SECRET_KEY", "b" * 16)
    monkeypatch.setattr("actorproc.host.failing.OUTAGE_SHOWN", 0.1)
    from examples.fastapi_service import app

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        with anyio.fail_after(20):  # less than `store_patience`
            async with app.router.lifespan_context(app):
                while (found := await client.get("/health")).json()["error"] is None:
                    await anyio.sleep(0.02)
                assert found.status_code == 503
                assert "cannot reach" in found.json()["error"]
                assert not found.json()["running"]


async def test_wrong_use_ends_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE", str(tmp_path / "events"))
    monkeypatch.setenv("CONTAINER", str(tmp_path))  # a log
    from examples.fastapi_service import app

    async with Producer(tmp_path, partitions=2):
        pass
    ended = anyio.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: ended.set())  # as a web server does
    try:
        with anyio.fail_after(20), pytest.RaisesGroup(UsageError):
            async with app.router.lifespan_context(app):
                await anyio.sleep_forever()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.is_set()


async def test_a_host_whose_task_is_cancelled_says_that_it_drained_nothing() -> None:
    source = MemorySource(1)
    with structlog.testing.capture_logs() as logs, anyio.CancelScope() as scope:
        async with Processor(Capture, source=source, container=Store(MemoryStore())):
            await anyio.sleep(0)
            scope.cancel()
            await anyio.sleep(1)
    (told,) = (entry["why"] for entry in logs if entry["event"] == "processor.cancelled")
    assert "run(signals=True)" in told
    with structlog.testing.capture_logs() as logs:
        async with Processor(Capture, source=source, container=Store(MemoryStore())):
            pass
    assert "processor.cancelled" not in [entry["event"] for entry in logs]
