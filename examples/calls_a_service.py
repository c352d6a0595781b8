r"""A handler that calls a service for each record, many calls at once, and loses no record in an outage.

    actorproc serve examples.calls_a_service:Shipped --source orders --container state \
        --option url=http://127.0.0.1:8000

While the service is unavailable its partitions wait, and `actorproc status` says why. A record with an unknown customer
becomes a dead letter. A call may be repeated after a crash or a rebalance, so the service must tolerate repeated calls.
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
    connections: int = Field(
        100, ge=1, description="Connections to the service, shared by all partitions of this host."
    )


class Shipped(RecordHandler[Order]):
    output_schema = "order string NOT NULL, city string NOT NULL"
    Options = Service
    concurrency = 16  # calls at once in each partition

    @classmethod
    @asynccontextmanager
    async def shared(cls, options: Service) -> AsyncIterator[httpx.AsyncClient]:
        # Waiting for a connection is not a failure: 8 partitions make 128 calls over 100 connections.
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
            return Decision.DEAD_LETTER  # a retry cannot help
        if isinstance(error, httpx.TransportError):  # no connection or a timeout; not a subclass of ConnectionError
            return Decision.RETRY  # without a limit
        if isinstance(error, httpx.HTTPStatusError) and (
            error.response.status_code in {408, 429} or error.response.is_server_error
        ):
            return Decision.RETRY
        return None
