"""The floor: the least time that Python and Arrow need for the work of a handler, summed from its parts.

The parts are timed alone, in the same process and over the same log as the handlers: reading the values, parsing them
by Arrow or by msgspec, whichever is faster, for handlers by record a call that makes a tuple, columns of these tuples,
and writing Parquet. Nothing else counts: no positions, no commits, no requests.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

_PIECE = 2_048  # values that are Python objects at once: of more, the caches no longer hold the objects
_READ = pyarrow.json.ReadOptions(use_threads=False, block_size=64 * 2**20)


class Event(msgspec.Struct):
    carrier: str
    origin: str
    minutes: float
    id: int


SCHEMA = pa.schema([("carrier", pa.string()), ("origin", pa.string()), ("minutes", pa.float64()), ("id", pa.int64())])
_PARSE = pyarrow.json.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="ignore")


def floors(log: Path, out: Path, rounds: int) -> dict[str, float]:
    """Seconds for the log, `columns` and `records`: the sums of the shortest times of the parts."""
    measured = [_parts(log, out) for _ in range(rounds)]
    least = {name: min(parts[name] for parts in measured) for name in measured[0]}
    common = least["read"] + least["write"]
    by_msgspec = least["parse by msgspec"] + least["tuples to columns"]
    parsed = min(least["parse by Arrow"], by_msgspec + least["structs to tuples"])
    records = by_msgspec + least["calls"]
    return {"columns": common + parsed, "records": common + records}


def _parts(log: Path, out: Path) -> dict[str, float]:
    """Seconds for each part."""
    seconds: defaultdict[str, float] = defaultdict(float)

    def timed(part: str, work: Callable[..., Any], *given: Any) -> Any:
        began = time.perf_counter()
        result = work(*given)
        seconds[part] += time.perf_counter() - began
        return result

    for path in sorted(log.glob("partition=*/*.parquet")):
        values = timed("read", values_of, path)
        rows = timed("parse by Arrow", _by_arrow, values)
        for start in range(0, len(values), _PIECE):
            events = timed("parse by msgspec", _by_msgspec, values[start : start + _PIECE])
            timed("structs to tuples", _tuples, events)
            timed("tuples to columns", _columns_from, timed("calls", _called, events))
        timed("write", _write, rows, out / f"{path.parent.name}-{path.name}")
    return dict(seconds)


def _write(rows: pa.Table, path: Path) -> None:
    pq.write_table(rows, path, compression="lz4")


def values_of(path: Path) -> pa.BinaryArray:
    return pq.read_table(path, columns=["value"], use_threads=False, partitioning=None)["value"].combine_chunks()


def _by_arrow(values: pa.BinaryArray) -> pa.Table:
    lines = b"\n".join(values.to_numpy(zero_copy_only=False))
    return pyarrow.json.read_json(pa.BufferReader(lines), _READ, _PARSE)


def _by_msgspec(values: pa.BinaryArray) -> list[Event]:
    return _DECODER.decode_lines(b"\n".join(values.to_numpy(zero_copy_only=False)))


_DECODER = msgspec.json.Decoder(Event)


def _tuples(events: list[Event]) -> list[tuple[object, ...]]:
    return list(map(msgspec.structs.astuple, events))


def _row(event: Event) -> tuple[object, ...]:
    return event.carrier, event.origin, event.minutes, event.id


def _called(events: list[Event]) -> list[tuple[object, ...]]:
    return [_row(event) for event in events]


def _columns_from(rows: list[tuple[object, ...]]) -> list[pa.Array]:
    return [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
