"""The table that a stream fills, one folder per micro-batch, and its comparison with the output."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from actorproc.runtime.clock import SYSTEM
from tests.chaos.verdict import Row

UNNOTED = 0.2
"""Seconds between the write of a batch to the table and the return to Spark, so that some kills fall in between."""


class Table:
    """Micro-batches as folders of Parquet files. One that is there stays: run again, a micro-batch has the same rows.

    Args:
        writer: name of the process that writes.
        careless: a planted fault: a micro-batch that is run again is taken for a new one.
    """

    def __init__(self, folder: Path, writer: str = "", *, careless: bool = False) -> None:
        self._batches = folder / "batches"
        self._drafts = folder / "drafts"
        self._writer = writer
        self._careless = careless
        for each in (self._batches, self._drafts):
            each.mkdir(parents=True, exist_ok=True)

    def write(self, frame: DataFrame, batch: int) -> None:
        """The function for `foreachBatch`."""
        target = self._batches / (f"{batch}-{SYSTEM.nonce()}" if self._careless else f"{batch}")
        if target.exists():
            print(f"batch {batch} is there", flush=True)
            return
        draft = self._drafts / f"{self._writer}-{batch}-{SYSTEM.nonce()}"
        frame.write.parquet(str(draft))
        draft.rename(target)
        time.sleep(UNNOTED)

    def finished(self) -> int:
        """How many micro-batches are there."""
        return sum(1 for _ in self._batches.iterdir())

    def drafts(self) -> int:
        """How many are half written: most of them for good."""
        return sum(1 for _ in self._drafts.iterdir())

    def writing(self, writer: str) -> bool:
        """Whether that process is in the middle of one, or ended there."""
        return any(self._drafts.glob(f"{writer}-*"))

    def rows(self) -> list[Row]:
        """All rows, read without Spark."""
        files = sorted(self._batches.glob("*/*.parquet"))
        return [row for path in files for row in pq.read_table(path, partitioning=None).to_pylist()]


def check_table(table: Sequence[Row], output: Mapping[str, Sequence[Row]]) -> list[str]:
    """Check that the table holds exactly the rows of the output, each once. The output was compared with the events.

    Args:
        output: by partition.
    """
    there = Counter(_key(row) for row in table)
    expected = Counter(_key({**row, "_partition": name}) for name, rows in output.items() for row in rows)
    wrong = sorted(
        (
            (dict(row), there[row], expected[row])
            for row in there.keys() | expected.keys()
            if there[row] != expected[row]
        ),
        key=lambda found: (found[0]["_partition"], found[0]["_sequence"]),
    )
    if not wrong:
        return []
    lost = sum(max(0, times - here) for _, here, times in wrong)
    extra = sum(max(0, here - times) for _, here, times in wrong)
    row, here, times = wrong[0]
    first = f"{row} is there {here} times and in the output {times} times"
    return [f"the table lacks {lost} rows of {expected.total()} and has {extra} too many; the first: {first}"]


def _key(row: Row) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(row.items()))
