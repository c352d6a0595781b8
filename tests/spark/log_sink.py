"""A stream between logs that can be killed: python -m tests.spark.log_sink SOURCE LOG CHECKPOINT"""

from __future__ import annotations

import sys

from tests.spark.conftest import new_session


def main(source: str, log: str, checkpoint: str) -> None:
    """Copy all there is, in micro-batches of one file."""
    reader = new_session().readStream.format("actorproc").options(kind="log", maxFilesPerTrigger=1)
    columns = reader.load(source).select("key", "value", "headers", "timestamp").repartition(3, "value")
    writer = columns.writeStream.format("actorproc").options(checkpointLocation=checkpoint, logPartitions=8)
    writer.trigger(availableNow=True).start(log).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
