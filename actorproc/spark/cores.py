"""How many tasks Spark runs at once, also shortly after it has begun."""

from __future__ import annotations

import time

from pyspark.sql import SparkSession

from actorproc.runtime.clock import SYSTEM

_ARRIVING = 20.0  # seconds from the session's start in which a cluster's first executors are waited for
_SETTLED = 3.0  # seconds without a further one, after which no more are waited for


def cores(spark: SparkSession) -> int:
    """`spark.default.parallelism` if that is set; otherwise the cores there are.

    A cluster's executors report some seconds after the session has begun. Until then Spark says two, and a stream that
    believed that would be read in two tasks for as long as it runs.
    """
    context = spark.sparkContext
    if str(context.master).startswith("local") or context.getConf().contains("spark.default.parallelism"):
        return context.defaultParallelism
    there, since = 0, SYSTEM.wall()
    while SYSTEM.wall() < context.startTime / 1000 + _ARRIVING:
        found = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # the driver is counted, too
        if found != there:
            there, since = found, SYSTEM.wall()
        if there and SYSTEM.wall() - since > _SETTLED:
            break
        time.sleep(0.1)
    return context.defaultParallelism
