"""Writes a processor's rows to an Iceberg table, each once. This version of Iceberg needs PySpark 4.1.

make demo                                    # commits a year of departures under demo-data/
pip install 'pyspark==4.1.*'
python -m examples.iceberg_table             # processes new rows, then stops
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from actorproc.spark import stream_output

WAREHOUSE = os.environ.get("WAREHOUSE", "demo-data/tables")
TABLE = "lake.flights.delays"

SETTINGS = {
    "spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",  # for a folder; on S3 use a catalog with atomic swaps
    "spark.sql.catalog.lake.warehouse": WAREHOUSE,
    # Without it PySpark 4.1 runs `availableNow` as one micro-batch: after a crash it only repeats that one.
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
}


def append(rows: DataFrame) -> DataStreamWriter:
    """Each micro-batch becomes one snapshot of the table. It names the query (by its checkpoint) and the batch, so a
    batch that is repeated after a crash adds nothing."""
    # Iceberg reserves the name `_partition`.
    rows = rows.withColumnRenamed("_partition", "source_partition")
    rows.sparkSession.sql(f"CREATE TABLE IF NOT EXISTS {TABLE} ({rows.schema.toDDL()}) USING iceberg")
    return rows.writeStream.format("iceberg").option("path", TABLE)


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2,4]").config(map={**SETTINGS}).getOrCreate()
    writer = append(stream_output(spark, "demo-data/state", "delays"))
    query = writer.option("checkpointLocation", f"{WAREHOUSE}/delays.checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    spark.read.table(TABLE).groupBy("origin").avg("minutes").show()
