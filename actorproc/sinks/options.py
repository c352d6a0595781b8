"""Options of sinks: those that every sink has, and the check of those that one sink declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from actorproc.config.validation import did_you_mean, explain, without_credentials
from actorproc.errors import UsageError

Options = TypeVar("Options", bound="SinkOptions")


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


def sink_options(kind: type[Options], name: str, url: str, given: Mapping[str, Any]) -> Options:
    """The options of a sink as its model declares them.

    Raises:
        UsageError: one is unknown or wrong. Names the known ones.
    """
    if unknown := sorted(given.keys() - kind.model_fields.keys()):
        known = sorted(kind.model_fields)
        raise UsageError(
            f"sink {name} ({without_credentials(url)}): there is no option {unknown[0]!r}"
            f"{did_you_mean(unknown[0], known)} (it has {', '.join(known)})"
        )
    try:
        return kind(**given)
    except ValidationError as error:
        raise UsageError(explain(error, kind, dict.fromkeys(given, f"sink {name}: option "))) from None
