"""The example of state per key: totals stay exact through crashes."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pyarrow.dataset as ds
import pytest

from actorproc import Batch, Decision, PartitionContext, PartitionHandler, Processor, Producer
from actorproc.testing import MemorySource
from examples.running_totals import Payment, RunningTotals
from tests.processor.doubling import QUICK

Payments = list[tuple[str, int]]


class Unsteady(RunningTotals):
    """Now and then it fails amid a batch, which then comes again."""

    chance: ClassVar = random.Random(7)
    found: ClassVar[list[str]] = []
    """Partitions that were opened where there was state already."""
    fresh = True
    failures: ClassVar[list[int]] = []

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        time.sleep(0.002)  # there is more to do than is done before the next cut
        if len(ctx.state) and self.fresh:
            self.found.append(ctx.partition)
        self.fresh = False
        super().process(batch, ctx)

    def process_record(self, payment: Payment, ctx: PartitionContext) -> tuple[str, int, int]:
        row = super().process_record(payment, ctx)
        if self.chance.random() < 0.02:
            self.failures.append(self.record.sequence)
            raise ConnectionError("away")
        return row

    def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
        return Decision.RETRY


def payments(count: int) -> Payments:
    chance = random.Random(1)
    return [(f"account {chance.randrange(20)}", chance.randrange(-500, 1000)) for _ in range(count)]


def rows_below(state: Path, folder: str = "totals/output") -> list[dict[str, Any]]:
    """In the order of their partition."""
    files = sorted(map(str, (state / folder).rglob("*.parquet")))
    return ds.dataset(files).to_table().sort_by("_sequence").to_pylist() if files else []


def expected(sent: Payments) -> dict[str, list[tuple[int, int]]]:
    """Of each account: cents and total, one payment after the other."""
    cents = defaultdict(list)
    for account, amount in sent:
        cents[account].append(amount)
    return {account: list(zip(amounts, accumulate(amounts), strict=True)) for account, amounts in cents.items()}


def committed(state: Path) -> dict[str, list[tuple[int, int]]]:
    found = defaultdict(list)
    for row in rows_below(state):
        found[row["account"]].append((row["cents"], row["total"]))
    return dict(found)


def host(
    name: str,
    folder: Path,
    handler: type[PartitionHandler] = RunningTotals,
    *,
    source: Any = None,
) -> Processor:
    return Processor(
        handler, name="totals", source=source or str(folder / "log"), container=str(folder / "state"), host=name,
        **QUICK | {"poll_interval": 0.05, "max_batch_records": 25},
    )  # fmt: skip


@pytest.mark.slow
async def test_totals_are_exact_despite_crashes_moves_and_failures(
    tmp_path: Path,
) -> None:
    sent, chance, over = payments(3_000), random.Random(3), anyio.Event()
    Unsteady.found.clear()
    Unsteady.failures.clear()

    async def produce() -> None:
        async with Producer(str(tmp_path / "log"), linger=0.01) as producer:
            for start in range(0, len(sent), 100):
                for account, cents in sent[start : start + 100]:
                    await producer.send({"account": account, "cents": cents}, key=account)
                await anyio.sleep(0.05)

    async def cut_off_again_and_again(name: str) -> None:
        while not over.is_set():
            with anyio.move_on_after(chance.uniform(0.2, 0.8)):  # no stop: nothing is drained
                await host(name, tmp_path, Unsteady).run()

    async with Producer(str(tmp_path / "log"), partitions=4):
        pass
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cut_off_again_and_again, "a")
            tasks.start_soon(cut_off_again_and_again, "b")
            await produce()
            while len(Unsteady.found) < 12 or not Unsteady.failures:
                await anyio.sleep(0.01)
            over.set()
        await host("c", tmp_path, Unsteady).run(until_end=True)
    assert committed(tmp_path / "state") == expected(sent)


async def test_an_invalid_payment_is_a_dead_letter_and_not_counted(tmp_path: Path) -> None:
    source = MemorySource(1)
    for values in (["2", '"3"', "10000000000000000000", "4"], ["null", "5"]):
        source.append("0", [b'{"account": "a", "cents": %s}' % value.encode() for value in values])
        source.append("0", [None])
        await host("a", tmp_path, source=source).run(until_end=True)
    assert committed(tmp_path / "state") == {"a": [(2, 2), (4, 6), (5, 11)]}
    letters = "".join(path.read_text() for path in (tmp_path / "state").rglob("*.jsonl")).splitlines()
    assert [json.loads(letter)["sequence"] for letter in letters] == [1, 2, 4, 5, 7]
