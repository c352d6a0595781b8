"""`SinkOptions`: the options that every sink has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class SinkOptions(BaseModel):
    """Options of every sink. A sink adds its own in a subclass."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start: Literal["earliest", "now"] = Field(
        "earliest", description="First commits of a new sink: all that are kept, or those from its registration on."
    )
    batch_rows: Annotated[int, Field(gt=0, le=10**9)] = Field(
        50_000, description="Most rows of one delivery, unless a single commit has more."
    )
    buffer_bytes: Annotated[int, Field(gt=0, le=10**12)] = Field(
        16 * 2**20,
        description="Bytes of commits that a partition keeps in memory for the sink. It reads others again.",
    )
