"""Rows as Redis keeps them: names and texts in turn. A null is left out."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from actorproc.rows.json_values import plain_rows, to_json

_TOGETHER = 500
"""Rows of one argument of a script: Redis takes at most a million arguments."""


def packed_rows(rows: pa.Table) -> list[bytes]:
    """The rows as arguments of a script: MessagePack of lists of rows. CPU-heavy."""
    found: list[list[str | msgspec.Raw]] = [[] for _ in range(rows.num_rows)]
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        for row, text in zip(found, _texts(column), strict=True):
            if text is not None:
                row.extend((name, text))
    return [msgspec.msgpack.encode(found[at : at + _TOGETHER]) for at in range(0, len(found), _TOGETHER)]


def _texts(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pt.is_string(kind):
        return column.to_pylist()  # type: ignore[no-any-return]
    if pt.is_binary(kind):
        return [None if value is None else _raw(value) for value in column.to_pylist()]
    if pt.is_timestamp(kind):
        return pc.utf8_replace_slice(column.cast(pa.string()), 10, 11, "T").to_pylist()  # type: ignore[no-any-return]
    if pt.is_nested(kind):
        values = [row["v"] for batch in pa.table({"v": column}).to_batches() for row in plain_rows(batch)]
        return [None if value is None else to_json(value).decode() for value in values]
    return [None if value is None else _text(value) for value in column.to_pylist()]


def _raw(value: bytes) -> msgspec.Raw:
    """As MessagePack text: the scripts of Redis do not know its type of bytes."""
    return msgspec.Raw(b"\xdb" + len(value).to_bytes(4, "big") + value)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
