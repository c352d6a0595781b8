"""Sums up the dataset with Spark, as JSON. A program of its own, so that the output of Java goes to a log.

python -m actorproc.demo.spark OUTPUT_FOLDER airlines.csv
"""

from __future__ import annotations

import json
import sys


def sum_up(output: str, airlines: str) -> dict[str, object]:
    """Count and mean delay by carrier, number of rows, and of `(partition, _sequence)` that are there more than once.

    Args:
        output: the processor's output folder, read as the plain Parquet dataset that it is.
        airlines: CSV with a header `carrier,name`.
    """
    from pyspark.sql import functions as f

    from actorproc.spark.session import Session
    from actorproc.spark.session_options import SHORT_LIVED, session_options

    options = session_options("local[2,4]", app="actorproc demo", conf={"spark.ui.enabled": "false"}, java=SHORT_LIVED)
    spark = Session("local[2,4]", options).open()
    try:
        rows = spark.read.parquet(output)
        names = spark.read.csv(airlines, header=True)
        delays = rows.groupBy("carrier").agg(f.count("minutes").alias("flights"), f.mean("minutes").alias("mean"))
        carriers = delays.join(names, "carrier", "left").orderBy("carrier").collect()
        repeated = rows.groupBy("partition", "_sequence").count().where("count > 1").count()
        return {"rows": rows.count(), "repeated": repeated, "carriers": [row.asDict() for row in carriers]}
    finally:
        spark.stop()


if __name__ == "__main__":
    json.dump(sum_up(*sys.argv[1:]), sys.stdout)
