"""State per key, exact despite crashes and rebalances: each payment with its account's total so far.

    actorproc produce --log payments --partitions 4 --key account FILE.jsonl     # {"account": "a", "cents": 250}
    actorproc serve examples.running_totals:RunningTotals --source payments --container state
    actorproc state show --name RunningTotals --container state

All records of a key are in one partition, in order. `ctx.state` is committed together with the rows. So each total is
that of the committed payments before it, each counted once, whichever hosts they came to.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from actorproc import PartitionContext, RecordHandler


class Payment(msgspec.Struct):
    """`account` is also the record's key: otherwise its payments would be in several partitions."""

    account: str
    cents: Annotated[int, msgspec.Meta(ge=-(10**12), le=10**12)]


class RunningTotals(RecordHandler[Payment]):
    """One row per payment."""

    output_schema = "account string NOT NULL, cents bigint NOT NULL, total bigint NOT NULL"

    def process_record(self, payment: Payment, ctx: PartitionContext) -> tuple[str, int, int]:
        total = ctx.state.get(payment.account, 0) + payment.cents
        ctx.state.set(payment.account, total)
        return payment.account, payment.cents, total
