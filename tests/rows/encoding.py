"""Shared by the tests of rows: encoding by a schema given as text, two moments and two enums."""

from __future__ import annotations

import enum
import io
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from actorproc.rows.encoder import RowEncoder
from actorproc.rows.output_schema import parse_schema

NOON = datetime(2013, 1, 1, 12, 30, 15, 250, tzinfo=UTC)
NAIVE = NOON.replace(tzinfo=None)


def encoder(ddl: str) -> RowEncoder:
    return RowEncoder(parse_schema(ddl))


def encode(ddl: str, *rows: Any) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The stored rows without `_sequence`, and the misfits' messages. Records are numbered from 100."""
    batch, misfits = encoder(ddl).encode(rows, range(100, 100 + len(rows)))
    batch.validate(full=True)
    pq.write_table(pa.Table.from_batches([batch]), io.BytesIO())  # Parquet takes it as in a commit
    stored = [{k: v for k, v in row.items() if k != "_sequence"} for row in batch.to_pylist()]
    return stored, {sequence: str(misfit) for sequence, misfit in misfits.items()}


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3
