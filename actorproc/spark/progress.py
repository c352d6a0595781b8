"""What a query's progress tells: rows, times, and how far behind the committed output it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from actorproc.runtime.tasks import gather
from actorproc.spark.output import Output
from actorproc.spark.planning import Numbers
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

_LISTED = 1_000  # files listed of a partition, at most; what Spark has seen tells of more


@dataclass(frozen=True, slots=True)
class Progress:
    """One report of Spark's on a query.

    `batch`: number of the micro-batch; `ran`: whether there was one, or only a look for news. `rows` that it read;
    `seconds` that it took. `next`, `seen`: number of the next file of each partition, and of the first one not seen yet;
    None if the query does not read the output through our data source.
    """

    batch: int
    ran: bool
    rows: int
    seconds: float
    next: Numbers | None
    seen: Numbers | None
    sink: str = ""
    """As Spark calls it."""
    late: int = 0
    """Rows dropped behind the watermark; of an aggregation, groups of the rows of a task."""

    @classmethod
    def of(cls, document: Mapping[str, Any], what: str) -> Progress:
        """Read Spark's document. `what`: the dataset as its offsets name it."""
        ours = [source for source in document["sources"] if _of(source.get("endOffset")) == what]
        return cls(
            batch=document["batchId"],
            ran="addBatch" in document["durationMs"],
            rows=sum(source["numInputRows"] for source in document["sources"]),
            seconds=document["batchDuration"] / 1000,
            next=_least([_numbers(source["endOffset"]) for source in ours]),
            seen=_least([_numbers(source.get("latestOffset") or source["endOffset"]) for source in ours]),
            sink=document["sink"]["description"],
            late=sum(operator.get("numRowsDroppedByWatermark", 0) for operator in document.get("stateOperators", ())),
        )


def _document(offset: object) -> Mapping[str, Any]:
    """An offset as a document: Spark hands it out as JSON, or as text that is JSON."""
    if isinstance(offset, str):
        try:
            offset = orjson.loads(offset)
        except orjson.JSONDecodeError:
            return {}
    return offset if isinstance(offset, dict) else {}


def _of(offset: object) -> object:
    return _document(offset).get("of")


def _numbers(offset: object) -> Numbers:
    return dict(_document(offset).get("next", {}))


def _least(found: list[Numbers]) -> Numbers | None:
    """Over all readings of the output in one query: where the last of them is, of those that read the partition."""
    if not found:
        return None
    return {p: min(numbers[p] for numbers in found if p in numbers) for p in set().union(*found)}


class Lag(NamedTuple):
    """`rows` that are committed and not processed, at least; `seconds` since the first of them was committed."""

    rows: int
    seconds: float


async def read_lag(output: Output, store: Store, progress: Progress) -> Lag:
    """How far the query is behind what is committed now. A LIST per partition, and two footers where it is behind.

    Raises:
        StoreError: the store could not be read. SourceError: what comes next was trimmed.
    """
    start, seen = progress.next or {}, progress.seen or {}

    partitions = {*await output.partitions(store), *start}
    listed = await output.files(store, {partition: start.get(partition, 0) for partition in partitions}, _LISTED)

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
