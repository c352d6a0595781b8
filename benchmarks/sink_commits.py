"""CPU of transactions of a Delta table, at 1,000 partitions or after 1,000 others: a part of `sinks`.

A turn is all that a committer does each interval: it finds what is new, makes a transaction, and notes its progress.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean, median

import anyio
from rich.console import Console
from rich.table import Table

from actorproc.stores import open_store
from tests.connectors.delta.cost import transactions, turns

BAR = 50.0
"""Milliseconds of CPU."""

MANY = 1_000


async def _measure(folder: Path) -> dict[str, float]:
    async with open_store(str(folder / "earlier")) as store:
        after = mean((await transactions(store, 10, MANY + 100, 10))[-100:])
    async with open_store(str(folder / "wide")) as store:
        wide = mean((await transactions(store, MANY, 60, 100))[-40:])
    async with open_store(str(folder / "turns")) as store:
        took = await turns(store, MANY, 100)
    return {
        f"transaction of 10 files, after {MANY:,} others": after,
        f"transaction of 100 files, {MANY:,} partitions": wide,
        f"turn without news, {MANY:,} partitions": median(took.idle),
        f"turn with 100 new files, {MANY:,} partitions": median(took.busy),
    }


def print_commits(console: Console, folder: Path) -> None:
    """Print the table."""
    table = Table("Delta table, in a folder", "ms of CPU", "bar")
    for name, seconds in anyio.run(_measure, folder).items():
        table.add_row(name, f"{1000 * seconds:.1f}", f"{BAR:g}")
    console.print(table)
