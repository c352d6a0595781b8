"""Reference handlers that keep state: they count their rows by key, and end counts by timers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

from actorproc.handler.context import PartitionContext
from actorproc.handler.wake_context import WakeContext
from actorproc.handlers.record_handler import RecordHandler
from actorproc.records import Batch, Record
from actorproc.runtime.clock import SYSTEM
from tests.simulation.handler_styles import FLAKY, Committing, Loop, Plain, Reference, returned
from tests.simulation.reference_records import CYCLE, Attempt, PlannedResult, count_key
from tests.simulation.timer_checks import gap_of, timer_row


class Counting(Reference):
    """Counts its rows by key in `ctx.state`, and appends the count to the column `attempt`."""

    count_failures: ClassVar[bool] = True
    """Whether records that are going to fail are counted, too: then their change must be dropped."""

    def grant(self, record: Record, plan: PlannedResult, ctx: PartitionContext, emitted: int = 0) -> None:
        super().grant(record, self.count(record, plan, ctx), ctx, emitted)

    def count(self, record: Record, plan: PlannedResult, ctx: PartitionContext) -> PlannedResult:
        """Count the record, and return the plan with the count in its rows."""
        counted = ("row", "many", *(("fail", "misfit") if self.count_failures else ()))
        if plan.kind in counted:
            state, key = ctx.state("counts"), count_key(plan.number)
            count = state.get(key, 0) + 1
            if count == CYCLE:
                state.delete(key)
            else:
                state.set(key, count)
            self.counted(record, key, count, ctx)
            rows = [{**row, "attempt": f"{row['attempt']}#{count}"} for row in plan.rows]
            plan = replace(plan, rows=rows)
        return plan

    def counted(self, record: Record, key: str, count: int, ctx: PartitionContext) -> None:
        """Override: a record of `key` was counted."""


class CountingLoop(Counting, Loop):
    """Counts record by record."""


class CountingPlain(Counting, Plain):
    """Counts in a plain `def process`."""


class CountingRecords(RecordHandler, Counting):
    """Counts in `process_record`: a record that fails takes its change back, and alone is tried again."""

    def process_record(self, record: Record, ctx: PartitionContext) -> Any:
        return returned(self.count(record, Attempt(ctx).plan(record), ctx), record, ctx)


class CountingAwaitedRecords(RecordHandler, Counting):
    """Counts in an `async def process_record`. Some records fail before they are counted."""

    async def process_record(self, record: Record, ctx: PartitionContext) -> Any:
        attempt = Attempt(ctx)
        plan = attempt.plan(record)
        await SYSTEM.sleep(plan.wait)
        if ctx.attempt < 3 and attempt.draw(plan.number, "early") < FLAKY:
            raise RuntimeError("a service does not answer")
        return returned(self.count(record, plan, ctx), record, ctx)


class CommittingWhole(Counting, Committing):
    """Commits whole batches only: changes of state are not known by record."""

    commits = 0.3

    def may_commit(self, record: Record, batch: Batch) -> bool:
        return record.sequence == batch.last


class CountingCommitting(CommittingWhole):
    """Counts, and commits before the batch is done."""


class Waking(Counting):
    """Counts, and sets a timer for the key. `on_wake` emits the count, and the key begins anew."""

    def counted(self, record: Record, key: str, count: int, ctx: PartitionContext) -> None:
        if count == CYCLE:
            ctx.cancel_wake(key)
        elif record.timestamp is None:
            ctx.wake(key, after=gap_of(key))
        else:
            ctx.wake(key, record.timestamp + timedelta(seconds=gap_of(key)))

    def end_count(self, key: Any, ctx: WakeContext) -> dict[str, Any]:
        """The row of a timer. Some timers fail at the first attempts, after they have changed the state."""
        state = ctx.state("counts")
        row = timer_row(key, state.get(key, 0), ctx.due)  # 0: it has fired before, which shows
        state.delete(key)
        if ctx.attempt < 3 and Attempt(ctx).draw(key) < 5 * FLAKY:
            raise RuntimeError(f"the timer of {key} fails")
        return row


class WakingLoop(Waking, Loop):
    """Sets timers record by record. `on_wake` takes its time."""

    async def on_wake(self, key: Any, ctx: WakeContext) -> dict[str, Any]:
        await SYSTEM.sleep(0.3 * Attempt(ctx).draw(key, "wait") ** 4)
        return self.end_count(key, ctx)


class WakingRecords(CountingRecords, Waking):
    """Sets timers in `process_record`."""

    def on_wake(self, key: Any, ctx: WakeContext) -> dict[str, Any]:
        return self.end_count(key, ctx)


class WakingPlain(Waking, Plain):
    """Sets timers in a plain `def process`."""

    def on_wake(self, key: Any, ctx: WakeContext) -> dict[str, Any]:
        return self.end_count(key, ctx)


class WakingCommitting(Waking, CommittingWhole):
    """Sets timers, and commits before the batch is done."""

    def on_wake(self, key: Any, ctx: WakeContext) -> dict[str, Any]:
        return self.end_count(key, ctx)
