"""Options of an HTTP sink."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from actorproc.config.options import with_secret
from actorproc.sinks.options import SinkOptions

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = {"idempotency-key", "content-length", "transfer-encoding", "host", "connection", "expect", "accept-encoding"}


def _headers(given: object) -> object:
    """Headers as a table, or as lines `Name: value`. Values of a table may be `@FILE`."""
    if isinstance(given, str):
        lines = [line for line in given.splitlines() if line.strip()]
        if any(":" not in line for line in lines):
            raise ValueError("write a line `Name: value` for each header")
        given = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if not isinstance(given, Mapping):
        return given
    found = {str(name): with_secret(f"sink option headers.{name}", value) for name, value in given.items()}
    for name, value in found.items():
        if not _NAME.fullmatch(name):
            raise ValueError("a name of a header has other characters than letters, digits and hyphens")
        if name.lower() in _OURS:
            raise ValueError(f"the header {name} is set by actorproc")
        if isinstance(value, str) and (not value.isprintable() or not value.isascii()):
            raise ValueError(f"the header {name} has characters that are not printable ASCII")
    return found


class HttpOptions(SinkOptions):
    """Options of an HTTP sink."""

    batch_rows: Annotated[int, Field(gt=0, le=10**9)] = Field(
        5_000, description="Most rows of one delivery, unless a single commit has more. The position moves after it."
    )
    path: str = Field(
        "", repr=False, pattern=r"^([/?&=]\S*)?$", description="Appended to the URL; or `@FILE`, where it is a secret."
    )
    method: Literal["POST", "PUT"] = Field("POST", description="Of the requests.")
    body: Literal["array", "lines", "row"] = Field(
        "array", description="A JSON array of rows, a line of JSON for each row, or one request for each row."
    )
    request_rows: int = Field(500, gt=0, le=10**6, description="Most rows of a request.")
    request_bytes: int = Field(2**20, gt=0, le=2**30, description="Most bytes of a request, unless one row has more.")
    headers: Annotated[dict[str, str], BeforeValidator(_headers)] = Field(
        {}, repr=False, description="More headers: a table, or lines `Name: value`; or `@FILE`."
    )
    timeout: float = Field(30.0, gt=0, le=3600, description="Seconds for a request with its answer.")
    connections: int = Field(8, gt=0, le=1000, description="Requests of a host at once.")
    max_per_second: float | None = Field(None, gt=0, le=10**6, description="Most requests a second of a host.")
    most_retry_after: float = Field(
        300.0, ge=0, le=86_400, description="Most seconds that a server can ask to wait (`Retry-After`)."
    )
