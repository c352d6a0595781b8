"""Spark reads what is in Azure Blob Storage and Google Cloud Storage, through the data source, without JARs."""

from __future__ import annotations

from typing import Any

import pytest

from actorproc.config.settings import Settings
from actorproc.spark import read_output
from actorproc.spark.hadoop import is_local, spark_url, store_url
from tests.servers import clouds
from tests.spark.committing import Fleet

ABFSS = "abfss://state@shop.dfs.core.windows.net"


@pytest.mark.slow
@pytest.mark.parametrize("name", clouds()[:2])
async def test_spark_reads_output_in_a_cloud(
    spark: Any, request: pytest.FixtureRequest, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = request.getfixturevalue(name)
    url = await server.new_url()
    for option, value in server.settings.items():
        monkeypatch.setenv(f"ACTORPROC_{option.upper()}", str(value))
    fleet = Fleet(url, server.settings)
    await fleet.commit(p0=30, p1=20)
    frame = read_output(spark, url, "numbers")
    assert {(row._partition, row._sequence, row.n) for row in frame.collect()} == fleet.expected()


@pytest.mark.parametrize(
    ("given", "ours", "sparks"),
    [
        ("az://shop/state/x", "az://shop/state/x", f"{ABFSS}/x"),
        (f"{ABFSS}/x", "az://shop/state/x", f"{ABFSS}/x"),
        ("gs://shop/x", "gs://shop/x", "gs://shop/x"),
    ],
)
def test_a_place_is_spelled_for_spark_and_for_us(given: str, ours: str, sparks: str) -> None:
    settings = Settings.load()
    assert store_url(given, settings) == ours
    assert spark_url(given, settings) == sparks
    assert not is_local(given, settings)
