"""Parts of short stories: a handler that passes numbers on, its source, its check, and who owns the partitions."""

from __future__ import annotations

from collections import Counter

import orjson

from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch
from actorproc.simulation import Cluster, RecordResult, UnsteadySource


class Numbers(PartitionHandler):
    """Passes numbers on; plain, so that it runs in place of a thread."""

    output_schema = "n long"

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": record.json()})


def judge_number(ended: RecordResult) -> str | None:
    rows = [row["n"] for row in ended.rows]
    return None if rows == [orjson.loads(ended.value)] else f"became {rows}"


def numbers(partitions: int, each: int = 50) -> UnsteadySource:
    source = UnsteadySource(partitions)
    for partition in range(partitions):
        source.append(str(partition), [b"%d" % n for n in range(each)])
    return source


def owners(cluster: Cluster) -> Counter[str | None]:
    return Counter(lease.owner for lease in cluster.group.document.leases.values())
