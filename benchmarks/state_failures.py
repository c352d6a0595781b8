"""A handler with keyed state calls a service that fails: one record in a hundred, nine times out of ten.

`RETRY`: `on_error` returns `Decision.RETRY`, and the processor tries the record again. `inside`: the same handler with
a loop around its call, and the same pauses. Bars: at most 1.05 calls a record, the attempts of failing records apart;
at least 0.9 of the speed of `inside`.
"""

from __future__ import annotations

import random
import time
from typing import Any, ClassVar

import anyio
import orjson
from rich.console import Console
from rich.table import Table

from actorproc import Batch, Decision, PartitionContext, Record, RecordHandler
from actorproc.config.settings import Settings
from actorproc.testing import run_handler

_SERVICE = 0.001
"""Seconds that the service takes for a record."""
_PAUSE = 0.02
"""Seconds between two attempts."""
_SETTINGS = Settings(retry_backoff=_PAUSE, retry_backoff_max=_PAUSE)
_SHARE = 0.9
"""Of the calls for a failing record that fail."""


class Totals(RecordHandler):
    """A running total for each account."""

    output_schema = "account string, total bigint"
    calls: ClassVar[int] = 0
    failed: ClassVar[int] = 0

    async def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, Any]:
        payment = record.json()
        await self.service(payment)
        total = ctx.state.get(payment["account"], 0) + payment["cents"]
        ctx.state.set(payment["account"], total)
        return {"account": payment["account"], "total": total}

    async def service(self, payment: Any) -> None:
        """Raises ConnectionError for some payments, most of the time."""
        Totals.calls += 1
        await anyio.sleep(_SERVICE)
        if payment["number"] % 100 == 50 and random.random() < _SHARE:
            Totals.failed += 1
            raise ConnectionError("the service is away")

    def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
        return Decision.RETRY if isinstance(error, ConnectionError) else None


class Inside(Totals):
    """Tries again by itself."""

    async def service(self, payment: Any) -> None:
        while True:
            try:
                return await super().service(payment)
            except ConnectionError:
                await anyio.sleep(_PAUSE)


def run(records: int = 2_000, rounds: int = 3) -> None:
    """Print both, in turn."""
    table = Table(
        "retries", "records/s", "calls a record", "ratio", title="a slow service, keyed state, failing records"
    )
    values = [orjson.dumps({"number": n, "account": f"a{n % 50}", "cents": n}) for n in range(records)]
    for _ in range(rounds):
        speeds = []
        for name, handler in (("inside", Inside), ("RETRY", Totals)):
            random.seed(1)
            Totals.calls = Totals.failed = 0
            begun = time.perf_counter()
            anyio.run(_run, handler, values)
            speeds.append(records / (time.perf_counter() - begun))
            calls = (Totals.calls - Totals.failed) / records
            table.add_row(name, f"{speeds[-1]:.0f}", f"{calls:.3f}", f"{speeds[-1] / speeds[0]:.2f}")
    Console().print(table)


async def _run(handler: type[Totals], values: list[bytes]) -> None:
    result = await run_handler(handler, values, settings=_SETTINGS)
    if len(result.rows) != len(values) or result.dead_letters:
        raise RuntimeError(f"{len(result.rows)} rows of {len(values)} records, {len(result.dead_letters)} dead letters")
