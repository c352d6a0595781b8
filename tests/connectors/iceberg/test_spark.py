"""Spark with Iceberg reads the table, and does to it what its procedures do."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.iceberg.catalogs import Grown, World, sqlite_world
from tests.spark.conftest import ROOT
from tests.spark.environments import environment, variables

PYSPARK = "4.1.1"
TABLE = "actorproc.default.Copy"
SETTINGS: Mapping[str, str] = {
    "spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0,org.xerial:sqlite-jdbc:3.49.1.0",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.actorproc": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.actorproc.type": "jdbc",
    "spark.sql.session.timeZone": "UTC",
}


def spark(world: World, *statements: str) -> list[list[Any]]:
    """The rows of each statement, or what Spark says of it."""
    settings = {
        **SETTINGS,
        "spark.sql.catalog.actorproc.uri": world.uri.replace("sqlite:///", "jdbc:sqlite:"),
        "spark.sql.catalog.actorproc.warehouse": str(world.options["warehouse"]),
    }
    command = [str(environment(PYSPARK)), "-m", "tests.connectors.iceberg.spark_client", json.dumps(settings)]
    done = subprocess.run(
        command, cwd=ROOT, env=variables(), capture_output=True, text=True, check=False, input=json.dumps(statements)
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line[2:]) for line in done.stdout.splitlines() if line.startswith("= ")]


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_spark_reads_each_row_and_its_procedures_delete_nothing_of_ours(tmp_path: Path) -> None:
    world = sqlite_world(tmp_path)
    await world.process(60)
    await world.compact()
    await world.process(20, Grown)
    told = spark(
        world,
        f"SELECT * FROM {TABLE}",
        f"SELECT count(*) AS c FROM {TABLE} WHERE n >= 75 AND partition = '1'",
        f"CALL actorproc.system.expire_snapshots(table => '{TABLE}', older_than => now(), retain_last => 1)",
        f"CALL actorproc.system.remove_orphan_files(table => '{TABLE}', location => '{world.container}/Copy/output')",
        f"CALL actorproc.system.rewrite_data_files(table => '{TABLE}', options => map('rewrite-all', 'true'))",
        f"SELECT count(*) AS c FROM {TABLE}",
    )
    for what in told:
        print(str(what)[:300])
    assert Counter(row["n"] for row in told[0]) == Counter(range(80))
