"""Spark with Iceberg reads the table, and does to it what its statements and procedures do."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.iceberg.catalogs import Grown, World, sqlite_world
from tests.connectors.iceberg.test_readers import delays, examples
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


async def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    await delays(tmp_path)
    program = f"{examples(tmp_path)[-1]}\nprint('late', late.count())\n"
    command = [str(environment(PYSPARK)), "-c", program]
    done = subprocess.run(command, env=variables(), capture_output=True, text=True, check=False)
    assert "late 19" in done.stdout, done.stderr[-3000:]
