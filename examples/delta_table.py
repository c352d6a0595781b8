"""Writes a processor's rows to a Delta table, each once. This version of Delta needs PySpark 4.2.

make demo                                    # commits a year of departures under demo-data/
pip install 'pyspark==4.2.*'
python -m examples.delta_table               # processes new rows, then stops
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from actorproc.spark import stream_output

TABLE = os.environ.get("TABLE", "demo-data/tables/delays-delta")

SETTINGS = {
    "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def append(rows: DataFrame) -> DataStreamWriter:
    """Each micro-batch becomes one commit of the table. It names the query (by its checkpoint) and the batch, so a
    batch that is repeated after a crash adds nothing."""
    return rows.writeStream.format("delta").option("path", TABLE).option("mergeSchema", "true")


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2,4]").config(map={**SETTINGS}).getOrCreate()
    writer = append(stream_output(spark, "demo-data/state", "delays"))
    query = writer.option("checkpointLocation", f"{TABLE}.checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    spark.read.format("delta").load(TABLE).groupBy("origin").avg("minutes").show()
