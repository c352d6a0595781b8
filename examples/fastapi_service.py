"""A web service that processes a stream in the background.

    pip install . fastapi uvicorn                   # from a checkout of actorproc
    actorproc produce --log events --partitions 8 --key user FILE.jsonl
    uvicorn examples.fastapi_service:app

Stopping the server drains: current batches are finished and committed, and leases go to other instances at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Response

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.errors import UsageError

seen: Counter[str] = Counter()


class Users(PartitionHandler):
    """Counts the events of each user, and emits a row for each event."""

    output_schema = "user string, action string"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            event = record.json()
            seen[event["user"]] += 1
            ctx.emit(record, {"user": event["user"], "action": event["action"]})


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The host runs beside the server, which answers also while the host waits for its store or its source."""
    source = os.environ.get("SOURCE", "events")
    container = os.environ.get("CONTAINER", "state")
    processor = app.state.processor = Processor(Users, source=source, container=container)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run(processor))
        yield
        processor.stop()


async def run(processor: Processor) -> None:
    try:
        await processor.run()
    except UsageError:  # for example a schema that does not fit the stored one: end the server, which logs the error
        signal.raise_signal(signal.SIGTERM)
        raise


app = FastAPI(lifespan=lifespan)


@app.get("/health")
async def health(response: Response) -> dict[str, Any]:
    """Health of the host.

    A host that cannot continue ends, for example when another host has taken its name. The server keeps running, so an
    orchestrator must restart it. A host that cannot reach its store or its source retries, so restart only after
    several failed checks.
    """
    statistics = app.state.processor.statistics()
    error = statistics.error
    response.status_code = 200 if statistics.running and error is None else 503
    return {"running": statistics.running, "error": error}


@app.get("/users/{user}")
async def user(user: str) -> dict[str, Any]:
    return {"user": user, "events_here": seen[user]}


@app.get("/statistics")
async def statistics() -> Any:
    return app.state.processor.statistics()
