"""`make bench-spark` measures output as processors commit it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from actorproc.spark import read_output
from benchmarks.spark.committed import NAME, Writer


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.slow
def test_the_datasets_of_the_benchmarks_read_as_any_output(spark: SparkSession, tmp_path: Path, native: bool) -> None:
    writer = Writer(tmp_path / "state")
    for partition in (0, 0, 3):
        writer.commit(partition, 5)
    writer.close()
    rows = read_output(spark, str(tmp_path / "state"), NAME, native=native)
    found = {(row._partition, row._sequence) for row in rows.collect()}
    assert found == {("0", sequence) for sequence in range(10)} | {("3", sequence) for sequence in range(5)}
