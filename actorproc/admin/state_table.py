"""A committed state as a table: one row for each key, for exports and Spark."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from actorproc.errors import UsageError
from actorproc.handler.timers import utc
from actorproc.rows.output_schema import nullable
from actorproc.state.reading import CommittedState, key_text, value_text


def table_schema(value: pa.DataType | None) -> pa.Schema:
    """Columns of a table of keys: `state` is its name, "" for `ctx.state` itself; `key` is text or JSON.

    Args:
        value: type of the values; None: they are shown as JSON.
    """
    return pa.schema(
        [
            pa.field("partition", pa.string(), nullable=False),
            pa.field("state", pa.string(), nullable=False),
            pa.field("key", pa.string(), nullable=False),
            nullable(pa.field("value", value or pa.string())),
            pa.field("expires", pa.timestamp("us", "UTC")),
        ]
    )


def state_batch(found: CommittedState, name: str, value: pa.DataType | None) -> pa.RecordBatch:
    """The keys of one named state, in the order of `key`.

    Raises:
        UsageError: a value is not of this type.
    """
    expires = found.expiring(name)
    entries = sorted((key_text(key), key, held) for key, held in found.items(name))
    try:
        values = [value_text(held) if value is None else _revived(held, value) for _, _, held in entries]
        columns = [
            [found.partition] * len(entries), [name] * len(entries), [text for text, _, _ in entries], values,
            [_time(expires.get(key)) for _, key, _ in entries],
        ]  # fmt: skip
        schema = table_schema(value)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    except (pa.ArrowException, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"partition {found.partition}: a value of state {name!r} is not of its declared type: {error}. It was "
            "stored before the handler declared this type"
        ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else utc(seconds)


def _revived(value: Any, kind: pa.DataType) -> Any:
    """The value with dates as such: msgpack has them as text."""
    if value is None or not pt.is_nested(kind):
        return _moment(value, kind)
    if pt.is_struct(kind):
        return {field.name: _revived(value.get(field.name), field.type) for field in kind}
    if pt.is_map(kind):
        return [(key, _revived(item, kind.item_type)) for key, item in value.items()]
    return [_revived(item, kind.value_type) for item in value]


def _moment(value: Any, kind: pa.DataType) -> Any:
    if type(value) is str and pt.is_date(kind):
        return date.fromisoformat(value)
    return datetime.fromisoformat(value) if type(value) is str and pt.is_timestamp(kind) else value
