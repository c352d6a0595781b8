"""A client of Spark Connect that uses every reader and writer. It prints its results as JSON.

python -m tests.spark.over_connect REMOTE CONTAINER FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from actorproc.spark import read_output, stream_output


def _main(remote: str, container: str, folder: str) -> None:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    rows = read_output(spark, container, "numbers")
    values = "CAST(n AS STRING) AS value"
    rows.selectExpr("_partition AS key", values).write.format("actorproc").mode("append").option(
        "logPartitions", "2"
    ).save(f"{folder}/batch")
    stream = stream_output(spark, container, "numbers", max_files=2).selectExpr("_partition AS key", values)
    query = (
        stream.writeStream.format("actorproc")
        .options(checkpointLocation=f"{folder}/checkpoint", logPartitions="2")
        .trigger(availableNow=True)
        .start(f"{folder}/stream")
    )
    query.awaitTermination()
    letters = spark.read.format("actorproc").options(kind="dead-letters", name="numbers").load(container)

    def log(name: str) -> list[Any]:
        frame = spark.read.format("actorproc").option("kind", "log").load(f"{folder}/{name}")
        return [(row.key.decode(), int(row.value)) for row in frame.collect()]

    found = {
        "rows": [(row._partition, row._sequence, row.n) for row in rows.collect()],
        "one column": sorted(row.n for row in read_output(spark, container, "numbers", columns=["n"]).collect()),
        "of a path from here": read_output(spark, os.path.relpath(container), "numbers").count(),
        "letters": letters.count(),
        "batch": log("batch"),
        "stream": log("stream"),
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    _main(*sys.argv[1:])
