"""The Spark session of the benchmarks: that of `actorproc spark`, on this process's cores, with 3 GB, quiet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

CORES = len(os.sched_getaffinity(0))


@contextmanager
def session() -> Iterator[Any]:
    """A session, stopped at the end."""
    from actorproc.spark.session import Session
    from actorproc.spark.session_options import session_options

    conf = {
        "spark.driver.memory": "3g",
        "spark.sql.streaming.numRecentProgressUpdates": "100000",  # all of them
        "spark.ui.enabled": "false",
    }
    chosen = Session("local", session_options(f"local[{CORES},4]", app="benchmarks", conf=conf))
    spark = chosen.open()
    spark.sparkContext.setLogLevel("OFF")  # a stream that is stopped complains
    try:
        yield spark
    finally:
        chosen.close()
