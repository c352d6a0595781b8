"""Rows as Redis keeps them: names and texts in turn. A null is left out."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from actorproc.connectors.redis.keys import key_of
from actorproc.connectors.redis.options import RedisOptions
from actorproc.rows.json_values import plain_rows, to_json
from actorproc.sinks.keyed_rows import commit_numbers, deletes, last_of_keys
from actorproc.sinks.protocol import Delivery, SinkRefused

_NUMBER = "_number of the commit"

_TOGETHER = 500
"""Rows of one argument of a script: Redis takes at most a million arguments."""


def packed_rows(rows: pa.Table) -> list[bytes]:
    """The rows as arguments of a script: MessagePack of lists of rows. CPU-heavy."""
    return _packed(_fields(rows, [[] for _ in range(rows.num_rows)]))


class KeyedRows(NamedTuple):
    """Rows with different keys."""

    keys: list[bytes]
    packed: list[bytes]
    """As arguments of a script. A row begins with the number of its commit, and whether it deletes its key."""


def keyed_rows(delivery: Delivery, options: RedisOptions) -> KeyedRows:
    """The last row of each key. CPU-heavy.

    Raises:
        SinkRefused: a key is null.
    """
    rows = delivery.rows.append_column("_partition", pa.repeat(delivery.partition, delivery.rows.num_rows))
    rows = last_of_keys(rows.append_column(_NUMBER, commit_numbers(delivery)), options.key)
    numbers, rows = rows[_NUMBER].to_pylist(), rows.drop_columns([_NUMBER])
    if null := [name for name in options.key if rows[name].null_count]:
        raise SinkRefused(f"the key column {null[0]} is null in a row")
    values = zip(*(_texts(rows[name], plain=True) for name in options.key), strict=True)
    gone = deletes(rows, options.deleted).to_pylist()
    begins = [[f"{number:020d}", "1" if is_gone else "0"] for number, is_gone in zip(numbers, gone, strict=True)]
    return KeyedRows([key_of(value) for value in values], _packed(_fields(rows, begins)))


def _fields(rows: pa.Table, found: list[list[Any]]) -> list[list[Any]]:
    """Adds names and texts."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        for row, text in zip(found, _texts(column), strict=True):
            if text is not None:
                row.extend((name, text))
    return found


def _packed(rows: list[list[Any]]) -> list[bytes]:
    return [msgspec.msgpack.encode(rows[at : at + _TOGETHER]) for at in range(0, len(rows), _TOGETHER)]


def _texts(column: pa.ChunkedArray, *, plain: bool = False) -> list[Any]:
    """`plain`: bytes as they are."""
    kind = column.type
    if pt.is_string(kind) or (plain and pt.is_binary(kind)):
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
