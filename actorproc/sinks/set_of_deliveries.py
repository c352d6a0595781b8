"""The deliveries of one partition to all sinks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import pyarrow as pa

from actorproc.sinks.delivery import SinkDelivery, SinkStatistics


class Deliveries:
    """Told of each commit by the committer; run beside the partition's loop."""

    def __init__(self, deliveries: Sequence[SinkDelivery]) -> None:
        self.each = tuple(deliveries)

    def begin(self, tip: int, depth: int, rows: int) -> None:
        """The partition was opened, and its chain ends before commit `tip`, with so many rows before it.

        `depth`: see `Checkpoint.depth`.
        """
        for delivery in self.each:
            delivery.begin(tip, depth, rows)

    def committed(self, number: int, rows: pa.Table, put_id: str, begin: int) -> None:
        """Commit `number` is settled, and begins after sequence `begin`. Never waits."""
        for delivery in self.each:
            delivery.committed(number, rows, put_id, begin)

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with anyio.create_task_group() as tasks:
            for delivery in self.each:
                tasks.start_soon(delivery.run)

    def statistics(self) -> tuple[SinkStatistics, ...]:
        """A snapshot of each."""
        return tuple(delivery.statistics() for delivery in self.each)

    async def drain(self, limit: float | None = None, *, stopped: Callable[[], bool] = lambda: False) -> None:
        """Wait until all that is committed is delivered, at most `limit` seconds: the next owner delivers the rest.

        Args:
            stopped: asked again and again, whether not to wait any longer.
        """
        with anyio.move_on_after(limit):
            for delivery in self.each:
                await delivery.caught_up(stopped)

    async def close(self) -> None:
        """Note how far each sink is, as far as the store answers."""
        for delivery in self.each:
            await delivery.close()
