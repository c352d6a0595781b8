"""The trace of a record lists its commits, rows, dead letter, and the record itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from actorproc import (
    Batch,
    PartitionContext,
    PartitionHandler,
    Processor,
    Producer,
    Record,
    RecordHandler,
    WakeContext,
)
from actorproc.admin.own_source import own_source
from actorproc.admin.resets import Resets
from actorproc.admin.trace import Trace, trace
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.output.compacted_file import CompactedCommits
from actorproc.output.compaction import merge, plan, switch
from actorproc.output.file_merger import _commits
from actorproc.output.schema_document import read_schema
from actorproc.rows.output_schema import output_schema
from actorproc.server import dashboard_app
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.parquet import Footer
from actorproc.storage.store import Store
from actorproc.stores import open_store

RECORDS = 40
SETTINGS = Settings(dead_letter_limit=1, max_batch_records=4, commit_rows=1, read_ahead_batches=1)


class Twice(PartitionHandler):
    """Two rows for each number, none for an odd one, and a dead letter for each seventh."""

    output_schema = "n bigint"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            number = int(record.value or 0)
            if number % 7 == 0:
                ctx.dead_letter(record, "a seventh", kind="Seventh")
            elif number % 2 == 0:
                ctx.emit(record, {"n": number})
                ctx.emit(record, {"n": -number})
            if number % 4 == 3:
                await ctx.commit(record)


@pytest.fixture
async def place(tmp_path: Path) -> tuple[str, str]:
    """Log and container of a processor that has run to the end, with a dozen commits."""
    log, container = str(tmp_path / "log"), str(tmp_path / "state")
    async with Producer(log, partitions=1) as producer:
        await producer.send_many([str(number).encode() for number in range(RECORDS)])
    await process(log, container)
    return log, container


async def process(log: str, container: str) -> None:
    await Processor(Twice, name="p", source=log, container=container, settings=SETTINGS).run(until_end=True)


async def reset_to(container: str, sequence: int) -> None:
    layout = ProcessorLayout("p")
    async with open_store(container, SETTINGS) as store, own_source(store, layout, SETTINGS) as source:
        resets = Resets(store, layout, SETTINGS, source, "ann")
        await resets.carry_out(await resets.plan(sequence), {"to": str(sequence)})


async def compact(store: Store, layout: ProcessorLayout, target_size: int = 2**27) -> None:
    schema = await read_schema(store, layout)
    assert schema is not None
    for found in await plan(store, layout, ["0"], target_size=target_size, older_than=0):
        for group in found.groups:
            made = await merge(store, layout, group, output_schema(schema))
            assert made is not None
            await switch(store, layout, found, made)


async def traced(container: str, sequence: int, partition: str = "0") -> Trace:
    async with open_store(container, SETTINGS) as store:
        return await trace(store, ProcessorLayout("p"), SETTINGS, partition, sequence)


def numbers(found: Trace) -> list[list[Any]]:
    """The rows of each pass."""
    return [[row["n"] for row in httpx.Response(200, content=b"[" + b",".join(map(bytes, one.rows)) + b"]").json()]
            for one in found.passes]  # fmt: skip


async def test_each_record_is_found_with_its_rows_or_its_letter_in_its_commit(place: tuple[str, str]) -> None:
    _, container = place
    commits = set()
    for sequence in range(RECORDS):
        found = await traced(container, sequence)
        assert found.record is not None
        assert found.record["value"] == str(sequence)
        rows = [n for one in numbers(found) for n in one]
        assert rows == ([] if sequence % 7 == 0 or sequence % 2 else [sequence, -sequence])
        assert (found.letter is not None) == (sequence % 7 == 0)
        commits |= {one.first for one in found.passes}
    assert len(commits) > 5
    assert (await traced(container, 2)).outcome == "it has 2 rows in the output"
    assert (await traced(container, 7)).outcome == "it is a dead letter"
    assert "left no row and no dead letter" in (await traced(container, 1)).outcome


async def test_a_record_that_is_not_committed_yet_waits(place: tuple[str, str]) -> None:
    log, container = place
    async with Producer(log) as producer:
        await producer.send(b"100")
    found = await traced(container, RECORDS)
    assert (found.outcome, found.committed_up_to, found.passes) == ("it is not committed yet", RECORDS - 1, [])
    assert found.record is not None
    assert found.record["value"] == "100"


async def test_a_record_that_is_not_in_the_stream_yet_is_not_called_lost(place: tuple[str, str]) -> None:
    _, container = place
    found = await traced(container, 10**8)
    assert (found.outcome, found.record) == ("it is not committed yet", None)
    assert found.record_missing == f"there is no such record yet: the newest is {RECORDS - 1}"


async def test_a_record_that_a_reset_repeats_has_two_passes(place: tuple[str, str]) -> None:
    log, container = place
    await reset_to(container, 20)
    assert "it waits to be processed again" in (await traced(container, 30)).outcome
    await process(log, container)
    assert numbers(await traced(container, 30)) == [[30, -30], [30, -30]]
    assert numbers(await traced(container, 18)) == [[18, -18]]
    assert "it was processed 2 times, after resets" in (await traced(container, 30)).outcome


@pytest.mark.parametrize("compacted", [False, True])
async def test_rows_of_timers_are_found_in_later_commits(tmp_path: Path, compacted: bool) -> None:
    class Wakes(RecordHandler):
        output_schema = "n bigint"

        def process_record(self, record: Record, ctx: PartitionContext) -> None:
            ctx.wake(record.text, after=0.3)

        def on_wake(self, key: Any, ctx: WakeContext) -> dict[str, int]:
            if key == "1":
                ctx.wake("2", after=0.3)
            return {"n": int(key)}

    log, container = str(tmp_path / "log"), str(tmp_path / "state")
    async with Producer(log, partitions=1) as producer:
        await producer.send_many([b"0", b"1"])
    for _ in range(3):
        await Processor(Wakes, name="p", source=log, container=container, settings=SETTINGS).run(until_end=True)
        await anyio.sleep(0.4)
    if compacted:
        async with open_store(container, SETTINGS) as store:
            await compact(store, ProcessorLayout("p"))
    found = await traced(container, 1)
    assert [n for one in numbers(found) for n in one] == [0, 1, 2]
    assert found.outcome == "it has 3 rows in the output"


def compact_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge as the first version of actorproc did: across resets, and without put-ids."""

    def commits(key: str, footer: Footer, *, compacted: bool) -> CompactedCommits:
        return replace(_commits(key, footer, compacted=compacted), put_ids=("",), reset=None)

    monkeypatch.setattr("actorproc.output.file_merger._commits", commits)


@pytest.mark.parametrize("earlier", [False, True])
async def test_rows_before_a_reset_are_found_in_compacted_files(
    place: tuple[str, str], earlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if earlier:
        compact_as_before(monkeypatch)
    log, container = place
    commits = Path(container, "p", "output", "partition=0")
    before = len(list(commits.iterdir()))
    await reset_to(container, 4)
    await process(log, container)
    size = sum(file.stat().st_size for file in sorted(commits.iterdir())[: before + 3])
    async with open_store(container, SETTINGS) as store:
        await compact(store, ProcessorLayout("p"), size)
    found = await traced(container, 30)
    of = [(one.first, one.last) for one in found.passes]
    assert of == [(0, before + 2 if earlier else before - 1), (before + 3, before + 8)]
    assert [n for one in numbers(found) for n in one] == [30, -30, 30, -30]


async def test_rows_of_compacted_files_are_found(place: tuple[str, str]) -> None:
    _, container = place
    async with open_store(container, SETTINGS) as store:
        await compact(store, ProcessorLayout("p"))
    found = await traced(container, 16)
    assert numbers(found) == [[16, -16]]
    assert found.passes[0].first < found.passes[0].last


async def test_wrong_partitions_and_ids_are_refused_and_lost_records_said(
    place: tuple[str, str],
) -> None:
    log, container = place
    with pytest.raises(UsageError, match="no partition '9'; there are: 0"):
        await traced(container, 1, "9")
    Path(log).rename(f"{log}-away")
    transport = httpx.ASGITransport(dashboard_app(container, Settings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://test/api/processors/p/") as http:
        found = (await http.get("record", params={"id": "0:2"})).json()
        refused = await http.get("record", params={"id": "2"})
    assert found["record"] is None
    assert found["record_missing"]
    assert found["passes"][0]["rows"] == [{"_sequence": 2, "n": 2}, {"_sequence": 2, "n": -2}]
    assert refused.status_code == 400
