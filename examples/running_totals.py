"""State per key, exact despite crashes and rebalances: each payment with its account's total so far.

    actorproc produce --log payments --partitions 4 --key account FILE.jsonl     # {"account": "a", "cents": 250}
    actorproc serve examples.running_totals:RunningTotals --source payments --container state --option container=state

All records of a key are in one partition, in order, so its handler sees everything about the key. Attributes end with
the instance, committed rows do not. `opened` runs after the partition was claimed and all its commits were found. If
another host continues from there as well, only one of the two can commit. So each total is computed from the committed
rows before it, each counted once.
"""

from __future__ import annotations

from collections import ChainMap
from typing import Annotated
from urllib.parse import quote

import anyio.to_thread
import msgspec
import pyarrow.dataset as ds
from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem
from pydantic import BaseModel

from actorproc import Batch, PartitionContext, PartitionHandler, PartitionInfo


class Payment(msgspec.Struct):
    """`account` is also the record's key: otherwise its payments would be in several partitions."""

    account: str
    # Limited, so that a total fits its column. A row that does not fit would fail after `process` has counted it.
    cents: Annotated[int, msgspec.Meta(ge=-(10**12), le=10**12)]


class Place(BaseModel):
    container: str
    """The same as `--container`: a folder, or a URL that pyarrow knows (`s3://bucket/state`)."""


class RunningTotals(PartitionHandler):
    """One row per payment. The rows are the state: everything that must outlive the instance is in them."""

    output_schema = "account string NOT NULL, cents bigint NOT NULL, total bigint NOT NULL"
    Options = Place

    async def opened(self, ctx: PartitionInfo) -> None:
        container = ctx.options.container
        self.totals = await anyio.to_thread.run_sync(committed_totals, container, ctx.processor, ctx.partition)

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        # A copy: a failed attempt changes nothing, and its records come again.
        totals: ChainMap[str, int] = ChainMap({}, self.totals)
        for record in batch:
            try:
                payment = msgspec.json.decode(record.value or b"", type=Payment)
            except msgspec.DecodeError as error:
                # Not `ctx.fail`: a record that is retried by itself would come after later ones of its account.
                ctx.dead_letter(record, str(error))
                continue
            total = totals.get(payment.account, 0) + payment.cents
            totals[payment.account] = total
            ctx.emit(record, {"account": payment.account, "cents": payment.cents, "total": total})
        self.totals.update(totals.maps[0])  # last: these records do not come again to this instance


def committed_totals(container: str, processor: str, partition: str) -> dict[str, int]:
    """The newest total of each account in this partition.

    Raises:
        LookupError: rows are missing, so totals would be too low. The partition does not start.
    """
    files, root = FileSystem.from_uri(container) if "://" in container else (LocalFileSystem(), container)
    name = quote(partition, safe="")
    claimed = files.get_file_info(f"{root}/{processor}/checkpoints/{name}.json")  # `opened` runs after the claim
    if not claimed.is_file:
        raise LookupError(f"option container = {container!r} does not hold the state of {processor}")
    folder = f"{root}/{processor}/output/partition={name}"
    found = files.get_file_info(FileSelector(folder, allow_not_found=True))
    paths = sorted(info.path for info in found if info.base_name[:20].isdecimal() and info.extension == "parquet")
    if paths and not paths[-1].endswith(f"/{len(paths) - 1:020}.parquet"):  # commits are numbered from 0
        raise LookupError(f"{folder} lacks commits: trimmed, compacted and trimmed, or deleted")
    totals: dict[str, int] = {}
    if paths:
        # In commit order: the last total of an account stays.
        for rows in ds.dataset(paths, filesystem=files).to_batches(columns=["account", "total"]):
            totals.update(zip(rows["account"].to_pylist(), rows["total"].to_pylist(), strict=True))
    return totals
