"""Writes committed output straight into a folder: a dataset of any size in little time."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import numpy as np
import pyarrow as pa

from actorproc.counts import Counts
from actorproc.output.chain import Commit, encode_commit
from actorproc.output.checkpoint import Checkpoint
from actorproc.output.schema_document import agree_on_schema
from actorproc.output.source_identity import agree_on_source
from actorproc.records import Cursor
from actorproc.rows.output_schema import output_schema, parse_schema
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store

NAME = "Delays"
PARTITIONS = 4
SCHEMA = parse_schema("carrier string, minutes double, flight int, tail string, origin string, at timestamp")
LAYOUT = ProcessorLayout(NAME)


class Writer:
    """The output of a processor named NAME, of SCHEMA, in PARTITIONS partitions, whose rows are drawn from one seed."""

    def __init__(self, container: Path) -> None:
        self._container = container
        self._random = np.random.default_rng(1)
        self._tails = pa.array([f"N{n}AA" for n in range(400)])
        self._number = [0] * PARTITIONS
        self._rows = [0] * PARTITIONS
        anyio.run(self._prepare)

    async def _prepare(self) -> None:
        async with open_store(str(self._container)) as store:
            await agree_on_schema(store, LAYOUT, SCHEMA)
            await agree_on_source(store, LAYOUT, "bench", "bench", "")
        for partition in range(PARTITIONS):
            self._path(partition, 0).parent.mkdir(parents=True)
        await self._checkpoint()

    def close(self) -> None:
        """Move the checkpoints to the end."""
        anyio.run(self._checkpoint)

    async def _checkpoint(self) -> None:
        async with open_store(str(self._container)) as store:
            for partition, (number, rows) in enumerate(zip(self._number, self._rows, strict=True)):
                here = Checkpoint(1, number, Cursor(str(rows), rows - 1), Counts(rows, rows))
                await store.put(LAYOUT.checkpoint(str(partition)), here.to_json())

    def commit(self, partition: int, rows: int) -> None:
        """One more file."""
        first = self._rows[partition]
        end = self._rows[partition] = first + rows
        totals = Counts(end, end)
        commit = Commit(
            put_id="bench", host="a", epoch=1, first=Cursor(str(first), first - 1), next=Cursor(str(end), end - 1),
            totals=totals, time=0.0, rows=rows,
        )  # fmt: skip
        body, _ = encode_commit(self._table(first, rows), commit, b"")
        self._path(partition, self._number[partition]).write_bytes(body)
        self._number[partition] += 1

    def repeat(self, partition: int, count: int) -> None:
        """More files like the first one; they are there to be listed."""
        for _ in range(count):
            os.link(self._path(partition, 0), self._path(partition, self._number[partition]))
            self._number[partition] += 1

    def _table(self, first: int, rows: int) -> pa.Table:
        def some(values: pa.Array) -> pa.Array:
            return values.take(pa.array(self._random.integers(0, len(values), rows)))

        sequences = np.arange(first, first + rows)
        columns = [
            some(pa.array(["AA", "UA", "DL", "WN", "B6"])),
            pa.array(self._random.normal(10, 20, rows).round()),
            pa.array(self._random.integers(1, 6000, rows), pa.int32()),
            some(self._tails),
            some(pa.array(["EWR", "JFK", "LGA"])),
            pa.array(1_356_998_400_000_000 + sequences * 1_000_000, pa.timestamp("us", "UTC")),
            pa.array(sequences),
        ]
        return pa.Table.from_arrays(columns, schema=output_schema(SCHEMA))

    def _path(self, partition: int, number: int) -> Path:
        return self._container / LAYOUT.output_file(str(partition), number)
