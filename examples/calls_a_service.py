"""A handler that asks a service about each record, many at once, and lets no record suffer for an outage of the
service.

    actorproc serve examples.calls_a_service:Shipped --source orders --container state --option
    url=http://127.0.0.1:8000

While the service is away its partitions wait, and `actorproc status` says why; a record that the service knows nothing
of becomes a dead letter. A call may be made twice (after a crash, or where another host goes on): it should not mind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec
from pydantic import BaseModel, Field

from actorproc import Batch, Decision, PartitionContext, RecordHandler


class Order(msgspec.Struct):
    order: str
    customer: str


class Service(BaseModel):
    url: str
    connections: int = Field(100, ge=1, description="To the service, from this host: all its partitions share them.")


class Shipped(RecordHandler[Order]):
    output_schema = "order string NOT NULL, city string NOT NULL"
    Options = Service
    concurrency = 16  # calls at once in each partition

    @classmethod
    @asynccontextmanager
    async def shared(cls, options: Service) -> AsyncIterator[httpx.AsyncClient]:
        # A call that waits for a connection is no failure: with 8 partitions there are 128 calls, and 100 connections.
        limits, timeout = httpx.Limits(max_connections=options.connections), httpx.Timeout(10, pool=None)
        async with httpx.AsyncClient(base_url=options.url, limits=limits, timeout=timeout) as client:
            yield client

    async def process_record(self, order: Order, ctx: PartitionContext) -> dict[str, str]:
        answer = await ctx.shared.get(f"/customers/{order.customer}")
        if answer.status_code == 404:
            raise LookupError(f"there is no customer {order.customer!r}")
        answer.raise_for_status()
        return {"order": order.order, "city": answer.json()["city"]}

    def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
        if isinstance(error, LookupError):
            return Decision.DEAD_LETTER  # at once: it will not get better
        if isinstance(
            error, httpx.TransportError
        ):  # no connection, no answer in time; it is no ConnectionError of Python's
            return Decision.RETRY  # for as long as it takes
        if isinstance(error, httpx.HTTPStatusError) and (
            error.response.status_code in {408, 429} or error.response.is_server_error
        ):
            return Decision.RETRY
        return None
