"""Options and address of a ClickHouse sink."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import Field

from actorproc.errors import UsageError
from actorproc.sinks.options import SinkOptions

_PORTS = {"clickhouse": 8123, "clickhouses": 8443}


class ClickHouseOptions(SinkOptions):
    """Options of a ClickHouse sink."""

    table: str | None = Field(None, min_length=1, description="Table of the rows. Default: the processor's name.")
    create: bool = Field(True, description="Whether to create the table, and the columns that it lacks.")
    window: int = Field(
        10_000, gt=0, le=10**9, description="Latest blocks, of all partitions, that the table must know again."
    )
    password: str | None = Field(None, repr=False, description="Or `@FILE`.")
    connections: int = Field(4, gt=0, le=1000, description="Requests of a host at once.")
    timeout: int = Field(60, gt=0, le=3600, description="Seconds for a request.")


def address_of(url: str, name: str, options: ClickHouseOptions) -> dict[str, Any]:
    """Arguments of the client."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except ValueError:
        parts = urlsplit("")
    if not parts.hostname or "/" in parts.path[1:] or parts.query or parts.fragment:
        raise UsageError(f"sink {name}: give a URL such as clickhouse://user@host:8123/database")
    return {
        "host": parts.hostname, "port": port, "secure": parts.scheme == "clickhouses",
        "username": unquote(parts.username or "default"), "password": options.password or "",
        "database": unquote(parts.path[1:]) or "default",
        "connect_timeout": options.timeout, "send_receive_timeout": options.timeout,
        "autogenerate_session_id": False,  # the requests of a session exclude one another
    }  # fmt: skip
