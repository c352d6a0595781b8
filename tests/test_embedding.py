"""The FastAPI example, as a server would run it."""

from __future__ import annotations

from pathlib import Path

import anyio
import httpx
import orjson
import pytest

from actorproc import Producer


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
        statistics = (await client.get("/statistics")).json()
        assert statistics["processor"] == "Users"
        assert [p["partition"] for p in statistics["supervisor"]["partitions"]] == ["0", "1"]
    assert list((tmp_path / "state" / "Users" / "output").rglob("*.parquet"))
