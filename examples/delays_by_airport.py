"""Delays of flights by airport and hour: windows over event time, emitted once the watermark has passed them.

make demo                                    # commits a year of departures under demo-data/
python -m examples.delays_by_airport         # processes all rows, then stops
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from actorproc.spark import stream_output

LATE = 15  # minutes


def delays_by_airport(flights: DataFrame) -> DataFrame:
    """One row per airport and hour with flights: `start`, `origin`, `flights`, `minutes`, `late`.

    An hour closes when flights scheduled two hours after its end have come. Later flights of that hour are dropped.
    """
    hour = f.window("scheduled", "1 hour")
    return (
        flights.withWatermark("scheduled", "2 hours")
        .groupBy(hour, "origin")
        .agg(
            f.count("*").alias("flights"),
            f.avg("minutes").alias("minutes"),
            f.count_if(f.col("minutes") > LATE).alias("late"),
        )
        .select(f.col("window.start").alias("start"), "origin", "flights", "minutes", "late")
    )


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,4]").config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()  # the default of 200 is for clusters
    delays = delays_by_airport(stream_output(spark, "demo-data/state", "delays"))
    delays.writeStream.format("memory").queryName("delays").trigger(availableNow=True).start().awaitTermination()
    spark.table("delays").orderBy(f.desc("minutes")).show(20, truncate=False)
