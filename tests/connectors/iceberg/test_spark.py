"""Spark with Iceberg reads the table, and does to it what its statements and procedures do."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from actorproc.errors import ActorprocError, UsageError
from tests.connectors.delta.test_readers import CONDITIONS
from tests.connectors.delta.test_spark import same
from tests.connectors.iceberg.catalogs import Grown, World, sqlite_world
from tests.connectors.iceberg.test_readers import IcebergFixture, delays, examples
from tests.spark.conftest import ROOT
from tests.spark.environments import environment, variables

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
PYSPARK = "4.1.1"
TABLE = "actorproc.default.Copy"
SETTINGS: Mapping[str, str] = {
    "spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0,org.xerial:sqlite-jdbc:3.49.1.0",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.actorproc": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.actorproc.type": "jdbc",
    "spark.sql.session.timeZone": "UTC",
}


def spark(uri: str, warehouse: object, *statements: str) -> list[list[Any]]:
    """The rows of each statement, or what Spark says of it."""
    settings = {
        **SETTINGS,
        "spark.sql.catalog.actorproc.uri": uri.replace("sqlite:///", "jdbc:sqlite:"),
        "spark.sql.catalog.actorproc.warehouse": str(warehouse),
    }
    command = [str(environment(PYSPARK)), "-m", "tests.connectors.iceberg.spark_client", json.dumps(settings)]
    done = subprocess.run(
        command, cwd=ROOT, env=variables(), capture_output=True, text=True, check=False, input=json.dumps(statements)
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line[2:]) for line in done.stdout.splitlines() if line.startswith("= ")]


def on(world: World, *statements: str) -> list[list[Any]]:
    return spark(world.uri, world.options["warehouse"], *statements)


async def test_spark_reads_each_row_and_finds_the_same_ones_with_statistics(tmp_path: Path) -> None:
    table = IcebergFixture(tmp_path, str(tmp_path / "state"), None)
    for _ in range(12):
        await table.feed(30)
    of = "actorproc.default.Types"
    counts = [f"SELECT array_sort(collect_list(n)) AS n FROM {of} WHERE {condition}" for condition in CONDITIONS]
    rows, *found = spark(table.uri, table.given["warehouse"], f"SELECT * FROM {of}", *counts)
    expected = (await table.expected()).to_pylist()
    assert same(rows, expected)
    given = {name: [row[name] for row in expected] for name in expected[0]}
    assert len(given["n"]) == 360
    for condition, (row,) in zip(CONDITIONS, found, strict=True):
        wanted = table.table().scan().filter("n >= 0").to_duckdb("t")
        wanted.execute("SET TimeZone = 'UTC'")
        assert row["n"] == [n for (n,) in wanted.execute(f"SELECT n FROM t WHERE {condition} ORDER BY n").fetchall()]


async def test_procedures_of_spark_delete_nothing_of_ours_and_rewrites_change_no_rows(tmp_path: Path) -> None:
    world = sqlite_world(tmp_path)
    await world.process(60)
    await world.compact()
    await world.process(20, Grown)
    files = sorted(Path(world.container).rglob("*.parquet"))
    of = f"table => '{TABLE}'"
    told = on(
        world,
        f"SELECT * FROM {TABLE}",
        f"CALL actorproc.system.expire_snapshots({of}, older_than => now(), retain_last => 1)",
        f"CALL actorproc.system.remove_orphan_files({of}, location => '{world.container}/Copy/output')",
        f"DROP TABLE {TABLE} PURGE",
        f"CALL actorproc.system.rewrite_data_files({of}, options => map('rewrite-all', 'true'))",
    )
    assert Counter(row["n"] for row in told[0]) == Counter(range(80))
    assert ["GC is disabled" in str(rows) for rows in told] == [False, True, True, True, False]
    assert sorted(Path(world.container).rglob("*.parquet")) == files
    await world.process(20, Grown)
    await world.compact()
    assert world.is_exact()
    assert await world.damages() == []
    await world.repair()
    assert world.is_exact()


async def test_delete_files_of_others_stop_compaction_until_a_repair(tmp_path: Path) -> None:
    """They do not apply to the compacted file, so deleted rows would come back."""
    world = sqlite_world(tmp_path)
    await world.process(60)
    on(
        world,
        f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')",
        f"DELETE FROM {TABLE} WHERE n = 7",
    )
    await world.process(20)
    assert world.rows().num_rows == 79
    with pytest.raises(UsageError, match="delete files"):
        await world.compact()
    assert world.rows().num_rows == 79
    await world.repair()
    assert world.is_exact()
    await world.process(60)
    assert await world.compact() == 2
    assert world.is_exact()


async def test_format_version_3_stops_transactions(tmp_path: Path) -> None:
    world = sqlite_world(tmp_path)
    await world.process(20)
    on(world, f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('format-version' = '3')")
    with pytest.raises(ActorprocError, match="has format version 3: actorproc writes version 2"):
        await world.process(20, store_patience=1)


async def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    await delays(tmp_path)
    program = f"{examples(tmp_path)[-1]}\nprint('late', late.count())\n"
    command = [str(environment(PYSPARK)), "-c", program]
    done = subprocess.run(command, env=variables(), capture_output=True, text=True, check=False)
    assert "late 19" in done.stdout, done.stderr[-3000:]
