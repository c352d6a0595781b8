"""A driver that runs an example of a table, in a process that may be killed.

python -m tests.spark.into_table MODULE CONTAINER CHECKPOINT forever    the stream, until it is killed
python -m tests.spark.into_table MODULE CONTAINER CHECKPOINT rest     the rest; then the table's rows on stdout, as JSON
"""

from __future__ import annotations

import importlib
import sys

from pyspark.sql import functions as f

from actorproc.spark import stream_output
from tests.spark.conftest import new_session
from tests.spark.flights import NAME


def _main(module: str, container: str, checkpoint: str, how: str) -> None:
    example = importlib.import_module(module)
    spark = new_session(settings=example.SETTINGS)
    writer = example.append(stream_output(spark, container, NAME)).option("checkpointLocation", checkpoint)
    if how == "forever":
        writer.trigger(processingTime="100 milliseconds").start().awaitTermination()
    writer.trigger(availableNow=True).start().awaitTermination()
    table = spark.read.format(module.rpartition(".")[2].removesuffix("_table")).load(example.TABLE)
    for row in table.select(f.to_json(f.struct("*"))).collect():
        print(row[0])


if __name__ == "__main__":
    _main(*sys.argv[1:])
