"""What other systems do to the Delta table, with delta-rs: transactions go on, `verify` tells, `repair` mends."""

from __future__ import annotations

import io
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import DeltaError

from actorproc import Processor
from actorproc.admin import sinks as operate
from actorproc.admin.compact import compact
from actorproc.admin.damage import Damage
from actorproc.admin.verify import verify
from actorproc.errors import ActorprocError, UsageError
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from actorproc.testing.memory_source import MemorySource
from tests.connectors.delta.world import Copy

LAYOUT = ProcessorLayout("Copy")


class Table:
    """A processor with a Delta table in a folder."""

    def __init__(self, folder: Path) -> None:
        self.container, self.folder = str(folder), folder / "Copy/output"
        self.source = MemorySource(2)
        self.fed = 0

    async def feed(self, count: int = 10) -> None:
        for n in range(self.fed, self.fed + count):
            self.source.append(str(n % 2), [str(n).encode()])
        self.fed += count
        host = Processor(
            Copy, source=self.source, container=self.container, name="Copy", host="a", sinks={"table": "delta"},
            commit_interval=1, store_patience=1,
        )  # fmt: skip
        await host.run(until_end=True)

    def delta(self, **options: Any) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(str(self.folder), **options)

    def rows(self) -> Counter[int]:
        found = deltalake.QueryBuilder().register("t", self.delta()).execute("SELECT n FROM t")
        return Counter(pa.table(found)["n"].to_pylist())

    def is_exact(self, beside: int = 0) -> bool:
        """`beside`: rows that a stranger has added, all with n = -1."""
        expected = Counter(range(self.fed)) + Counter({-1: beside})
        return self.rows() == expected

    async def damages(self) -> list[str]:
        async with open_store(self.container) as store:
            found: list[Damage] = (await verify(store, LAYOUT)).damages
        return [damage.what for damage in found]

    async def repair(self) -> None:
        async with open_store(self.container) as store:
            await operate.repair(store, LAYOUT, "table", {})


@pytest.fixture
async def table(tmp_path: Path) -> Table:
    made = Table(tmp_path / "state")
    for _ in range(5):
        await made.feed()
    assert made.is_exact()
    assert await made.damages() == []
    return made


def appended(table: Table, rows: int) -> None:
    ours = {"n": [-1] * rows, "_sequence": [10**9] * rows, "partition": ["0"] * rows}
    schema = pa.schema(
        [("n", pa.int64()), pa.field("_sequence", pa.int64(), nullable=False), ("partition", pa.string())]
    )
    deltalake.write_deltalake(str(table.folder), pa.table(ours, schema=schema), mode="append")


async def test_optimize_rewrites_rows_and_compaction_goes_on(table: Table) -> None:
    table.delta().optimize.compact()
    assert len(table.delta().file_uris()) == 2
    assert table.is_exact()
    await table.feed()
    assert table.is_exact()
    await compact(container=table.container, name="Copy", older_than=0)
    assert table.is_exact()
    for _ in range(4):
        await table.feed()
    await compact(container=table.container, name="Copy", older_than=0)
    assert table.is_exact()
    assert await table.damages() == []


async def test_an_optimize_that_overlaps_with_compaction_doubles_no_row(table: Table) -> None:
    """It has read the files that compaction replaces, and would land after that. delta-rs 1.6 takes no offence at files
    that are gone already, if their rows have stayed."""
    overlapping = table.delta()
    await compact(container=table.container, name="Copy", older_than=0)
    await table.feed()
    with pytest.raises(DeltaError, match=r"[Mm]etadata"):
        overlapping.optimize.compact()
    assert table.is_exact()
    table.delta().optimize.compact()
    await table.feed()
    assert table.is_exact()
    assert await table.damages() == []


async def test_rows_of_others_stay_and_verify_names_them(table: Table) -> None:
    appended(table, 3)
    await table.feed()
    assert table.is_exact(beside=3)
    (told,) = await table.damages()
    assert told == "has 3 rows in files of others that the output does not have"
    await table.repair()
    assert table.is_exact()
    assert await table.damages() == []


async def test_deleted_rows_are_found_missing_and_come_back(table: Table) -> None:
    table.delta().delete("n < 7")
    assert table.rows() == Counter(range(7, 50))
    told = await table.damages()
    assert [what.partition(", for")[0] for what in told] == ["lacks 4 rows", "lacks 3 rows"]
    await table.feed()
    await table.repair()
    assert table.is_exact()


async def test_vacuum_deletes_nothing_of_ours(table: Table) -> None:
    await compact(container=table.container, name="Copy", older_than=0)
    table.delta().vacuum(dry_run=False, full=True)
    table.delta().vacuum(dry_run=False)
    assert len(list(table.folder.glob("partition=*/*.parquet"))) == 10
    assert table.is_exact()


async def test_vacuum_with_a_retention_by_hand_deletes_originals_that_were_compacted(table: Table) -> None:
    """This is why the page says not to. Compacted files are in a folder that it passes over."""
    await compact(container=table.container, name="Copy", older_than=0)
    deltalake.DeltaTable(str(table.folder)).vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True
    )
    assert len(list(table.folder.glob("partition=*/*.parquet"))) < 10
    assert table.is_exact()
    await table.feed()
    assert table.is_exact()


async def test_a_restored_version_is_found_and_repaired(table: Table) -> None:
    table.delta().restore(3)
    assert table.rows() == Counter(range(30))
    await table.feed()
    assert set(table.rows()) == {*range(30), *range(50, 60)}
    told = await table.damages()
    assert len(told) == 2
    assert all(what.startswith("lacks 10 rows") for what in told)
    await table.repair()
    assert table.is_exact()
    await table.feed()
    assert table.is_exact()


async def test_a_deleted_log_is_made_anew_by_a_repair(table: Table) -> None:
    shutil.rmtree(table.folder / "_delta_log")
    await table.repair()
    assert table.is_exact()
    await table.feed()
    assert table.is_exact()
    assert await table.damages() == []


async def test_a_file_that_is_gone_is_named(table: Table) -> None:
    table.delta()
    next((table.folder / "partition=1").glob("*.parquet")).unlink()
    assert any("names 1 files that do not exist" in what for what in await table.damages())


async def test_a_feature_that_we_do_not_write_stops_transactions_until_it_is_gone(table: Table) -> None:
    table.delta().alter.add_feature(deltalake.TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises((ActorprocError, UsageError), match="features that actorproc does not write"):
        await table.feed()


async def test_checkpoints_of_others_are_read(table: Table) -> None:
    table.delta().create_checkpoint()
    await table.feed()
    assert table.is_exact()
    for entry in sorted((table.folder / "_delta_log").glob("*.json"))[:5]:
        entry.unlink()
    await table.feed()
    assert table.is_exact()
    assert await table.damages() == []


async def test_our_checkpoints_hold_what_the_log_says(table: Table) -> None:
    for _ in range(6):
        await table.feed()
    version = table.delta().version()
    for entry in (table.folder / "_delta_log").glob("*.json"):
        if int(entry.name[:20]) < 10:
            entry.unlink()
    assert table.delta().version() == version
    assert table.is_exact()
    stored = pq.read_table(
        io.BytesIO((table.folder / "_delta_log/00000000000000000010.checkpoint.parquet").read_bytes())
    )
    assert sum(add is not None for add in stored["add"].to_pylist()) == 20
