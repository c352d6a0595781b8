"""`SinkOptions`: the options that every sink has."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _names(given: Any) -> Any:
    """Column names, which may be one text: `a, b`, or a JSON list."""
    if not isinstance(given, str):
        return given
    if given.lstrip().startswith("["):
        return json.loads(given)
    return [name.strip() for name in given.split(",") if name.strip()]


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
"""Column names."""


class SinkOptions(BaseModel):
    """Options of every sink. A sink adds its own in a subclass."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start: Literal["earliest", "now"] = Field(
        "earliest", description="First commits of a new sink: all that are kept, or those from its registration on."
    )
    columns: Names | None = Field(None, description="Columns that the sink gets. Default: all of the output.")
    where: str | None = Field(
        None, description="SQL expression: the sink gets the rows for which it is true. Needs the extra `sql`."
    )
    mode: Literal["append", "upsert"] = Field(
        "append", description="Whether each row is added, or the newest one of each key is kept."
    )
    key: Names = Field((), description="Columns of the key, with `mode = upsert`.")
    deleted: str | None = Field(
        None, description="Boolean column, with `mode = upsert`: a row in which it is true deletes its key."
    )
    on_reset: Literal["repeat", "replace"] = Field(
        "repeat", description="Whether rows that come again are added once more, or replace those that are there."
    )
    on_refused: Literal["stop", "keep"] = Field(
        "stop", description="What a row does that the sink refuses: stop the delivery, or go into a table of its own."
    )
    batch_rows: Annotated[int, Field(gt=0, le=10**9)] = Field(
        50_000, description="Most rows of one delivery, unless a single commit has more."
    )
    buffer_bytes: Annotated[int, Field(gt=0, le=10**12)] = Field(
        64 * 2**20,
        description="Bytes of commits that a host keeps in memory for the sink. It reads others again.",
    )

    @model_validator(mode="after")
    def _fit_together(self) -> SinkOptions:
        if self.mode == "upsert" and not self.key:
            raise ValueError("mode = upsert needs a key: the columns that name a row")
        if self.mode == "upsert" and self.on_reset == "replace":  # rule `plain`
            raise ValueError("on_reset = replace is for mode = append: with upsert the newest row of a key wins anyway")
        if self.mode == "append" and (self.key or self.deleted):
            raise ValueError("key and deleted are for mode = upsert")
        return self
