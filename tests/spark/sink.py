"""A sink that is exactly once as long as a micro-batch that is run again has the same rows: a file for each batch.

python -m tests.spark.sink CONTAINER CHECKPOINT FOLDER BATCH     a stream that kills itself and Java in BATCH
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from actorproc.spark import stream_output
from tests.spark.committing import Rows


class Sink:
    """Micro-batches as files in `folder`."""

    def __init__(self, folder: Path, before: Callable[[int], None] = lambda batch: None) -> None:
        self._folder = folder
        self._before = before
        folder.mkdir(exist_ok=True)

    def start(self, frame: DataFrame, checkpoint: str | Path, *, interval: str | None = None) -> StreamingQuery:
        """Run the stream: all that is there, or at each `interval` until it is stopped."""
        writer = frame.writeStream.foreachBatch(self._write).option("checkpointLocation", str(checkpoint))
        return (writer.trigger(processingTime=interval) if interval else writer.trigger(availableNow=True)).start()

    def run(self, frame: DataFrame, checkpoint: str | Path) -> None:
        """Run the stream until it has read all that is there."""
        query = self.start(frame, checkpoint)
        if not query.awaitTermination(240):
            query.stop()
            raise TimeoutError(f"the stream does not end: {query.lastProgress}")

    def _write(self, frame: DataFrame, batch: int) -> None:
        rows = [(row._partition, row._sequence, row.n) for row in frame.collect()]
        self._before(batch)
        draft = self._folder / f"{batch}.draft"
        draft.write_text(json.dumps(rows))
        draft.rename(self._folder / f"{batch}.json")

    def batches(self) -> list[Rows]:
        """The rows of each batch. None may be in two of them."""
        files = sorted(self._folder.glob("*.json"), key=lambda path: int(path.stem))
        assert [int(path.stem) for path in files] == list(range(len(files)))
        found = [[tuple(row) for row in json.loads(path.read_text())] for path in files]
        every = [row for rows in found for row in rows]
        assert len(every) == len(set(every))
        return [set(rows) for rows in found]

    def rows(self) -> Rows:
        return set().union(*self.batches())


def _main(container: str, checkpoint: str, folder: str, fatal: str) -> None:
    from tests.spark.conftest import new_session

    def die(batch: int) -> None:
        if batch == int(fatal):
            os.killpg(0, signal.SIGKILL)

    Sink(Path(folder), die).run(stream_output(new_session(), container, "numbers", max_files=2), checkpoint)


if __name__ == "__main__":
    _main(*sys.argv[1:])
