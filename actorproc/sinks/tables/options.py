"""`TableOptions`: the options that every table has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class TableOptions(BaseModel):
    """Options of every table. A table format adds its own in a subclass."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start: Literal["earliest", "now"] = Field(
        "earliest", description="First commits of a new table: all that are kept, or those from its registration on."
    )
    interval: Annotated[float, Field(ge=1, le=86_400)] = Field(
        60.0, description="Seconds between two transactions of the table. Each one makes a version of it."
    )
    on_reset: Literal["repeat", "replace"] = Field(
        "repeat",
        description="After a reset the rows come again; or those that it takes back leave the table first (`replace`).",
    )
