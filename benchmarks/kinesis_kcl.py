"""A record processor for the Kinesis Client Library: `python -m benchmarks.kinesis_kcl FOLDER` writes Parquet files."""

from __future__ import annotations

import os
import sys
from itertools import count
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tests.connectors.kinesis.kcl import speak

COLUMNS = ("carrier", "dep_delay", "n")


def main() -> None:
    """A file for each call of the library, which then checkpoints."""
    numbers = count()
    files = Path(sys.argv[1], "files")

    def process(records: list[bytes]) -> None:
        events = [orjson.loads(record) for record in records]
        table = pa.table({name: [event[name] for event in events] for name in COLUMNS})
        name = f"{os.getpid()}-{next(numbers)}"
        pq.write_table(table, files / f".{name}")
        (files / f".{name}").rename(files / f"{name}.parquet")

    speak(process)


if __name__ == "__main__":
    main()
