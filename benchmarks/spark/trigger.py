"""A trigger on 100,000 files of output with 100 new ones: the data source, and Spark's own file stream.

Goal: the data source finds them within 2 s. Spark's file stream lists everything at each trigger, so its first trigger
is measured; reading up to the newest files would take too long.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.processes import only_warnings
from benchmarks.spark.committed import NAME, PARTITIONS, Writer
from benchmarks.spark.session import session

NEW = 100
ROWS = 100  # of each new file


def run(files: int = 100_000, rounds: int = 5) -> None:
    """Print the table."""
    only_warnings()
    with session() as spark, tempfile.TemporaryDirectory(prefix="actorproc-bench-") as folder:
        _triggers(spark, Path(folder), files, rounds)


def _triggers(spark: Any, folder: Path, files: int, rounds: int) -> None:
    from actorproc.spark import stream_output

    container = folder / "state"
    writer = Writer(container)
    for partition in range(PARTITIONS):
        writer.commit(partition, 1)
        writer.repeat(partition, files // PARTITIONS - 1)
        writer.commit(partition, ROWS)
    # Begins after the old files, as a query does that has read them.
    ours = stream_output(spark, str(container), NAME, start_sequence=1)
    own = stream_output(spark, str(container), NAME, native=True, max_files=NEW)
    _available(ours, folder / "ours")
    found, listed = [], []
    for turn in range(rounds):
        for n in range(NEW):
            writer.commit(n % PARTITIONS, ROWS)
        found.append(_available(ours, folder / "ours"))
        listed.append(_first(own, folder / f"own-{turn}"))

    table = Table(title=f"a trigger on {files:,} files with {NEW} new ones, seconds, median of {rounds}")
    for heading in ("stream", "finding them", "lowest, highest", "whole trigger", "lowest, highest", "bar"):
        table.add_column(heading, justify="left" if heading == "stream" else "right")
    for name, progress, bar in (("the data source", found, "< 2"), ("Spark's own file stream", listed, "")):
        finding, whole = _seconds(progress, "latestOffset"), _seconds(progress, "triggerExecution")
        middle = statistics.median(finding)
        colour = "default" if not bar else "green" if middle < 2 else "red"
        spread, wholly = (f"{min(took):.2f}, {max(took):.2f}" for took in (finding, whole))
        table.add_row(name, f"[{colour}]{middle:.2f}[/]", spread, f"{statistics.median(whole):.2f}", wholly, bar)
    Console().print(table)


def _seconds(progress: Sequence[dict[str, Any]], what: str) -> list[float]:
    return [each["durationMs"][what] / 1000 for each in progress]


def _available(frame: Any, checkpoint: Path) -> dict[str, Any]:
    """The progress of the last micro-batch that had rows, of a run over all that is there."""
    query = _writer(frame, checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    return [progress for progress in query.recentProgress if progress["numInputRows"]][-1]  # type: ignore[no-any-return]


def _first(frame: Any, checkpoint: Path) -> dict[str, Any]:
    """The progress of the first micro-batch."""
    query = _writer(frame, checkpoint).start()
    while not query.recentProgress:
        time.sleep(0.1)
    progress: dict[str, Any] = query.recentProgress[0]
    query.stop()
    return progress


def _writer(frame: Any, checkpoint: Path) -> Any:
    return frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))


if __name__ == "__main__":
    run()
