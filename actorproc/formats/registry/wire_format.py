"""Confluent's wire format: a zero byte, the schema id (4 bytes, big-endian), then the payload.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.errors import DecodeError

HEADER = 5
"""Bytes before the payload."""

NO_ID = -1

_LONGEST = 2**31 - 1  # bytes of a value; without a stop some values are "Negative buffer resize" (pyarrow 26.0)


def header_of(schema_id: int) -> bytes:
    """The header of values with this schema."""
    return b"\0" + schema_id.to_bytes(HEADER - 1, "big")


def schema_ids(values: pa.Array) -> npt.NDArray[np.int64]:
    """The schema id of each binary value; `NO_ID` where the value has no header."""
    ids = np.full(len(values), NO_ID, np.int64)
    content = values.buffers()[2]
    if not len(values) or content is None:
        return ids
    bounds = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    content = np.frombuffer(content, np.uint8)
    whole = np.flatnonzero(np.diff(bounds) >= HEADER)
    starts = bounds[whole]
    framed = whole[content[starts] == 0]
    starts = bounds[framed].astype(np.int64)
    ids[framed] = sum(content[starts + at].astype(np.int64) << (8 * (HEADER - 1 - at)) for at in range(1, HEADER))
    return ids


def schema_id(value: bytes) -> int:
    """The schema id of a value.

    Raises:
        DecodeError: the value has no header.
    """
    if len(value) < HEADER or value[0] != 0:
        raise no_header(value)
    return int.from_bytes(value[1:HEADER], "big")


def no_header(value: bytes | None) -> DecodeError:
    """Why a value has no schema id."""
    if value is None:
        return DecodeError("the record has no value")
    return DecodeError(
        f"the value begins with {value[:HEADER]!r}, and not with a zero byte and a schema id, as values written with "
        "a schema registry do"
    )


def without_first(values: pa.Array, size: int) -> pa.Array:
    """The values without their first `size` bytes."""
    return pc.binary_slice(values, size, _LONGEST)
