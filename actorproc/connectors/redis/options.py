"""Options of a Redis sink."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from actorproc.sinks.options import SinkOptions


class RedisOptions(SinkOptions):
    """Options of a Redis sink."""

    batch_rows: Annotated[int, Field(gt=0, le=10**9)] = Field(
        5_000, description="Most rows of one script call, which holds up Redis; unless a single commit has more."
    )
    stream: str | None = Field(None, min_length=1, description="Key of the stream. Default: the processor's name.")
    prefix: str | None = Field(
        None, min_length=1, description="Of keys, with `mode = upsert`: PREFIX:KEY. Default: the processor's name."
    )
    most_entries: int | None = Field(
        None, gt=0, le=10**12, description="Entries that the stream keeps, roughly: older ones go. Default: all."
    )
    password: str | None = Field(None, repr=False, description="Or `@FILE`.")
    connections: int = Field(8, gt=0, le=1000, description="Connections of a host: partitions that deliver at once.")
    timeout: float = Field(30.0, gt=0, le=3600, description="Seconds for a connection, and for a script call.")
