"""How late flights leave, by airport and hour: windows over event time, each told once, when its watermark has passed.

make demo                                    # commits a year of departures under demo-data/
python -m examples.delays_by_airport         # all that is there, then stops
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from actorproc.spark import stream_output

LATE = 15  # minutes


def delays_by_airport(flights: DataFrame) -> DataFrame:
    """A row for each airport and hour in which flights were scheduled: `start`, `origin`, `flights`, `minutes`, `late`.

    An hour stays open until flights come in that were scheduled two hours after its end; what comes later is left out.
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
    spark = builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()  # else 200, for a cluster
    delays = delays_by_airport(stream_output(spark, "demo-data/state", "delays"))
    delays.writeStream.format("memory").queryName("delays").trigger(availableNow=True).start().awaitTermination()
    spark.table("delays").orderBy(f.desc("minutes")).show(20, truncate=False)
