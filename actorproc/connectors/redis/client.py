"""A connection pool to Redis, or to a cluster, and what its errors mean."""

from __future__ import annotations

from typing import Any

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,  # noqa: A004
    NoPermissionError,
    ReadOnlyError,
    ResponseError,
)

from actorproc.connectors.redis.options import RedisOptions
from actorproc.sinks.protocol import SinkRefused

Client = redis.Redis | redis.RedisCluster


async def connect(url: str, options: RedisOptions, name: str) -> Client:
    """Connect, and look whether this Redis can keep its word.

    Raises:
        SinkRefused: it refuses the login, or may throw away keys when its memory is full.
    """
    common: dict[str, Any] = {
        "password": options.password, "client_name": name,
        "socket_timeout": options.timeout, "socket_connect_timeout": options.timeout,
    }  # fmt: skip
    once = Retry(NoBackoff(), 0)  # a delivery is tried again with a fresh look at the sink's row
    pool = redis.BlockingConnectionPool.from_url(
        url, max_connections=options.connections, timeout=options.timeout, retry=once, **common
    )
    client = redis.Redis.from_pool(pool)
    try:
        found = {**await client.info("memory"), **await client.info("cluster")}
    except BaseException as error:
        await client.aclose()
        if (refused := refusal(error)) is not None:
            raise refused from error
        raise
    if found.get("maxmemory") and str(found.get("maxmemory_policy", "")).startswith("allkeys-"):
        await client.aclose()
        raise SinkRefused(
            f"{url} may throw away any key when its memory is full (maxmemory-policy {found['maxmemory_policy']}): set "
            "maxmemory-policy to noeviction, or to a volatile- one"
        )
    if not found.get("cluster_enabled"):
        return client
    await client.aclose()
    return redis.RedisCluster.from_url(url, max_connections=options.connections, **common)


_LASTING = ("executing the script can't", "DB index is out of range", "the last possible ID")
"""In errors for which Redis has no code of their own."""


def refusal(error: BaseException) -> SinkRefused | None:
    """The error, if trying again cannot help."""
    lasts = isinstance(error, ResponseError) and any(part in str(error) for part in _LASTING)
    lasts = lasts or isinstance(error, NoPermissionError | AuthenticationError)
    return SinkRefused(f"Redis refuses: {error}") if lasts else None


async def reconnect(client: Client, error: Exception) -> None:
    """After a restart or a failover each idle connection would fail for itself, or leads to a replica."""
    if isinstance(error, ReadOnlyError | ConnectionError) and isinstance(client, redis.Redis):
        await client.connection_pool.disconnect(inuse_connections=False)
