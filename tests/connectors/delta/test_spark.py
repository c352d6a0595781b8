"""Spark with Delta reads the table, and rewrites it with OPTIMIZE."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.delta.test_readers import NAMES, Fixture, check
from tests.spark.conftest import ROOT
from tests.spark.environments import environment, variables

PYSPARK = "4.2.1"


def spark(table: Fixture, what: str) -> list[str]:
    command = [str(environment(PYSPARK)), "-m", "tests.connectors.delta.spark_reader", table.place.url, what]
    done = subprocess.run(command, cwd=ROOT, env=variables(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    """Spark's JSON leaves out what is null."""
    columns = ("partition", "_sequence", "n", "t", "tiny", "d")
    ours = [[str(row[name]) for name in columns] for row in expected]
    return sorted([str(row.get(name)) for name in columns] for row in found) == sorted(ours)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_spark_reads_each_row_and_its_optimize_changes_none(tmp_path: Path) -> None:
    table = Fixture(str(tmp_path / "state"), None)
    for _ in range(12):
        await table.feed(30)
    told = spark(table, "read")
    rows = [json.loads(line) for line in told if line.startswith("{")]
    assert same(rows, (await table.expected()).to_pylist())
    assert told[-1] == f"filtered 1 {len(range(1, table.fed, len(NAMES)))}"
    spark(table, "optimize")
    await table.feed(30)
    await check(table)
