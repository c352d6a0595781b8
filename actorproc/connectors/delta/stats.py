"""Statistics of a file for a Delta log, from its Parquet footer: row count, null counts, and bounds.

Engines skip files by bounds, so a wrong one loses rows for readers. There are none where a bound of Parquet does not
say what Delta means: of floats (NaN is left out), decimals (JSON readers may round them), booleans, bytes and parts of
nested columns. Texts are cut, timestamps widened to milliseconds, as Delta wants it.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import orjson
import pyarrow.parquet as pq

_PREFIX = 32  # characters of a text
_LAST = "\U0010ffff"  # sorts after all others
_BOUNDED = frozenset({"INT32", "INT64"})
_MILLISECOND = timedelta(milliseconds=1)


def stats_of(footer: pq.FileMetaData) -> str:
    """The JSON of the field `stats`."""
    found: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for index in range(footer.num_columns if groups else 0):
        column = footer.schema.column(index)
        if column.path != column.name or column.max_repetition_level or column.max_definition_level > 1:
            continue  # a part of a nested column
        stats = [group.column(index).statistics for group in groups if group.column(index).is_stats_set]
        if len(stats) == len(groups) and all(one is not None and one.has_null_count for one in stats):
            found["nullCount"][column.name] = sum(one.null_count for one in stats)
            bounds = _bounds(column, stats)
            if bounds is not None:
                found["minValues"][column.name], found["maxValues"][column.name] = bounds
    return orjson.dumps(found).decode()


def _bounds(column: pq.ColumnSchema, stats: list[Any]) -> tuple[Any, Any] | None:
    with_values = [one for one in stats if one.num_values]
    if not with_values or not all(one.has_min_max for one in with_values):
        return None
    is_text = column.physical_type == "BYTE_ARRAY" and column.logical_type.type == "STRING"
    if (not is_text and column.physical_type not in _BOUNDED) or column.logical_type.type == "DECIMAL":
        return None
    try:
        least, most = min(one.min for one in with_values), max(one.max for one in with_values)
        lower, upper = _value(least, upper=False), _value(most, upper=True)
    except (ValueError, OverflowError, TypeError):  # a date that Python does not have, or a text that is none
        return None
    return None if lower is None or upper is None else (lower, upper)


def _value(bound: Any, *, upper: bool) -> Any:
    """The bound as JSON; None: it cannot be told."""
    if isinstance(bound, datetime):
        whole = bound.replace(microsecond=bound.microsecond // 1000 * 1000)
        if upper and whole != bound:
            whole += _MILLISECOND
        return whole.replace(tzinfo=None).isoformat(timespec="milliseconds") + ("Z" if bound.tzinfo else "")
    if isinstance(bound, date):
        return bound.isoformat()
    if isinstance(bound, str):
        bound.encode()  # half a surrogate pair is no text
        if len(bound) <= _PREFIX:
            return bound
        cut = bound[:_PREFIX]
        return cut if not upper else None if bound[_PREFIX] == _LAST else cut + _LAST
    return bound if type(bound) is int else None
