"""The example of state per key: totals stay exact through crashes, and it does not start without its rows."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from shutil import copyfile
from typing import Any, ClassVar

import anyio
import pyarrow.dataset as ds
import pytest

from actorproc import Batch, Decision, PartitionContext, PartitionHandler, PartitionInfo, Processor, Producer, Record
from actorproc.errors import EndNotReached
from actorproc.testing import MemorySource
from examples.running_totals import RunningTotals
from tests.processor.doubling import QUICK

Payments = list[tuple[str, int]]


class Unsteady(RunningTotals):
    """Now and then it fails amid a batch, which then comes again."""

    chance: ClassVar = random.Random(7)
    found: ClassVar[list[str]] = []
    """Partitions that were opened where there were rows already."""
    failures: ClassVar[list[int]] = []

    async def opened(self, ctx: PartitionInfo) -> None:
        await super().opened(ctx)
        if any(rows_below(Path(ctx.options.container), f"{ctx.processor}/output/partition={ctx.partition}")):
            self.found.append(ctx.partition)

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        await anyio.sleep(0.002)  # there is more to do than is done before the next cut
        emit = ctx.emit

        def emit_or_fail(record: Record, row: Any) -> None:
            if self.chance.random() < 0.02:
                self.failures.append(record.sequence)
                raise ConnectionError("away")
            emit(record, row)

        ctx.emit = emit_or_fail  # type: ignore[method-assign]
        await super().process(batch, ctx)

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
    container: Path | None = None,
) -> Processor:
    return Processor(
        handler, name="totals", source=source or str(folder / "log"), container=str(folder / "state"), host=name,
        options={"container": str(container or folder / "state")},
        **QUICK | {"poll_interval": 0.05, "max_batch_records": 25},
    )  # fmt: skip


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


async def test_a_late_commit_of_the_former_owner_counts_once(tmp_path: Path) -> None:
    source, sent = MemorySource(1), [("a", 1), ("a", 2), ("a", 3), ("a", 4)]
    openings: list[int] = []

    def append(payments: Payments) -> None:
        source.append("0", [json.dumps({"account": account, "cents": cents}).encode() for account, cents in payments])

    class Next(RunningTotals):
        async def opened(self, ctx: PartitionInfo) -> None:
            late = tmp_path / "state" / former.relative_to(tmp_path / "elsewhere" / "state")
            late.parent.mkdir(parents=True, exist_ok=True)
            copyfile(former, late)  # after the walk, which did not find it
            await super().opened(ctx)
            openings.append(self.totals["a"])

    append(sent[:2])
    await host("former", tmp_path / "elsewhere", source=source).run(until_end=True)
    (former,) = (tmp_path / "elsewhere").rglob("0*.parquet")
    append(sent[2:])
    with anyio.fail_after(60):
        await host("next", tmp_path, Next, source=source).run(until_end=True)
    assert openings == [3, 3], "its first commit was refused, and it began anew"
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


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_partition_with_lost_rows_does_not_start(tmp_path: Path, lost: int) -> None:
    source = MemorySource(1)
    for _ in range(3):
        source.append("0", [b'{"account": "a", "cents": 1}'])
        await host("a", tmp_path, source=source).run(until_end=True)
    before = sorted((tmp_path / "state" / "totals" / "output").rglob("*.parquet"))
    before[lost].unlink()
    source.append("0", [b'{"account": "a", "cents": 1}'])
    with anyio.fail_after(60), pytest.raises(EndNotReached, match="lacks commits: trimmed"):
        await host("a", tmp_path, source=source).run(until_end=True)
    assert len(rows_below(tmp_path / "state")) == 2


async def test_a_foreign_container_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    source = MemorySource(1)
    source.append("0", [b'{"account": "a", "cents": 1}'])
    elsewhere = host("a", tmp_path, source=source, container=tmp_path / "elsewhere")
    with anyio.fail_after(60), pytest.raises(EndNotReached, match="does not hold the state of totals"):
        await elsewhere.run(until_end=True)
