"""A query's progress: rows, times, and its lag behind the committed output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from actorproc.admin.spark_checkpoint import parse_offset
from actorproc.runtime.tasks import gather
from actorproc.spark.output_dataset import Output
from actorproc.spark.planning import Numbers
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

_MOST_LISTED = 1_000  # files of a partition; Spark's report covers the rest


@dataclass(frozen=True, slots=True)
class Progress:
    """One of Spark's reports on a query.

    Attributes:
        batch: number of the micro-batch.
        ran: whether there was a micro-batch, or only a look for new rows.
        rows: rows that it read.
        seconds: duration.
        next: number of the next file, by partition; None if the query does not read the output through the data source.
        seen: number after the last file that was seen, by partition; None like `next`.
        sink: Spark's description of the sink.
        late: rows dropped behind the watermark; for an aggregation, groups of rows that a task had already combined.
    """

    batch: int
    ran: bool
    rows: int
    seconds: float
    next: Numbers | None
    seen: Numbers | None
    sink: str = ""
    late: int = 0

    @classmethod
    def from_document(cls, document: Mapping[str, Any], reads: str) -> Progress:
        """Parse Spark's report. `reads`: title of the dataset, as in its offsets."""
        ours = [source for source in document["sources"] if parse_offset(source.get("endOffset")).get("of") == reads]
        return cls(
            batch=document["batchId"],
            ran="addBatch" in document["durationMs"],
            rows=sum(source["numInputRows"] for source in document["sources"]),
            seconds=document["batchDuration"] / 1000,
            next=_lowest([source["endOffset"] for source in ours]),
            seen=_lowest([source.get("latestOffset") or source["endOffset"] for source in ours]),
            sink=document["sink"]["description"],
            late=sum(operator.get("numRowsDroppedByWatermark", 0) for operator in document.get("stateOperators", ())),
        )


def _lowest(offsets: list[object]) -> Numbers | None:
    """The lowest number of each partition. A query may read the output several times; the slowest counts."""
    if not offsets:
        return None
    found = [parse_offset(offset).get("next", {}) for offset in offsets]
    return {p: min(numbers[p] for numbers in found if p in numbers) for p in set().union(*found)}


class Lag(NamedTuple):
    """`rows`: at least so many are committed and not processed. `seconds`: since the first of them was committed."""

    rows: int
    seconds: float


async def read_lag(output: Output, store: Store, progress: Progress) -> Lag:
    """The query's lag behind the committed output. One LIST per partition, and two footers where it lags.

    Raises:
        StoreError: the store could not be read.
        SourceError: the next files were trimmed.
    """
    start, seen = progress.next or {}, progress.seen or {}

    partitions = {*await output.partitions(store), *start}
    listed = await output.files(store, {partition: start.get(partition, 0) for partition in partitions}, _MOST_LISTED)

    async def of(partition: str) -> tuple[int, float | None]:
        files = listed[partition]
        if not files:
            return 0, None
        stop = max(files[-1].next, seen.get(partition, 0))
        return await output.rows(store, partition, start.get(partition, 0), stop), files[0].time

    found = await gather(list(partitions), of)
    times = [time for _, time in found.values() if time is not None]
    now = (await store.list(ProcessorLayout(output.path).group, limit=1)).now if times else 0.0
    return Lag(sum(rows for rows, _ in found.values()), max(0.0, now - min(times)) if times else 0.0)
