"""What every program does by hand: JSON values into three columns, and Parquet files that are synced to disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema([("carrier", pa.string()), ("minutes", pa.float64()), ("id", pa.int64())])


class ParquetRows:
    """Collects rows, and writes them as a file when told to.

    Attributes:
        total: rows added so far.
        waiting: rows that are not written yet.
    """

    def __init__(self, folder: Path) -> None:
        self.total = 0
        self.waiting = 0
        self._folder = folder
        self._files = 0
        self._columns: tuple[list[str], list[float], list[int]] = ([], [], [])

    def add_values(self, values: Iterable[bytes]) -> None:
        """Parse JSON values, and add a row for each."""
        self.add_events(map(orjson.loads, values))

    def add_events(self, events: Iterable[dict[str, Any]]) -> None:
        carrier, minutes, ids = self._columns
        for event in events:
            carrier.append(event["carrier"])
            minutes.append(event["minutes"])
            ids.append(event["id"])
        self.total += len(ids) - self.waiting
        self.waiting = len(ids)

    def write(self) -> None:
        """Write the waiting rows as one file, and sync it."""
        if not self.waiting:
            return
        path = self._folder / f"{self._files:08}.parquet"
        table = pa.table(list(map(pa.array, self._columns, SCHEMA.types)), schema=SCHEMA)
        with path.open("wb") as file:
            pq.write_table(table, file, compression="lz4")
            file.flush()
            os.fsync(file.fileno())
        self._files += 1
        self._columns = ([], [], [])
        self.waiting = 0
