"""The example of sessions: visits end by gap, timer or purchase, and bad clicks become dead letters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pyarrow.dataset as ds
from typer.testing import CliRunner

from actorproc import Processor, Record
from actorproc.cli import app
from actorproc.records import Batch
from actorproc.testing import MemorySource, run_handler
from examples.sessions import Visits

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def clicks(*events: tuple[float, str]) -> list[Record]:
    """Clicks from pairs of minutes after noon and a text `USER:PAGE:CENTS`."""
    texts = [text.split(":") for _, text in events]
    values = [b'{"user": "%s", "page": "%s", "cents": %s}' % tuple(map(str.encode, text)) for text in texts]
    times = [NOON + timedelta(minutes=minutes) for minutes, _ in events]
    return list(Batch.of("0", values, range(len(values)), timestamps=times))


def visits(rows: list[dict[str, Any]]) -> list[tuple[str, float, float, int, int]]:
    """User, start and end in minutes after noon, pages, cents."""
    return [
        (row["user"], *((row[at] - NOON) / timedelta(minutes=1) for at in ("start", "end")), row["pages"], row["cents"])
        for row in rows
    ]


def committed(output: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.dataset(sorted(map(str, output.rglob("*.parquet")))).to_table().to_pylist()
    return rows


async def test_a_visit_ends_by_gap_timer_or_purchase() -> None:
    records = clicks((0, "a:/:0"), (5, "b:/:0"), (20, "a:/x:0"), (21, "b:/buy:250"), (60, "a:/:0"), (61, "c:/:0"))
    result = await run_handler(Visits, records)
    assert visits(result.rows) == [("b", 5, 21, 2, 250), ("a", 0, 20, 2, 0)]
    assert result.state.keys() == {"a", "c"}
    later = await run_handler(Visits, records, advance="29m")
    assert visits(later.rows)[2:] == [("a", 60, 60, 1, 0)]
    assert later.timers.keys() == {"c"}


async def test_a_bad_click_is_a_dead_letter_and_leaves_the_visit_alone() -> None:
    good = clicks((0, "a:/:0"), (1, "a:/x:-5"), (2, "a:/y:0"))
    result = await run_handler(Visits, [*good, b"no click", b'{"user": "a"}'], advance="1h")
    assert visits(result.rows) == [("a", 0, 2, 2, 0)]
    assert [letter["sequence"] for letter in result.dead_letters] == [1, 3, 4]
    assert "cents" in result.dead_letters[0]["error"]["message"]


async def test_the_job_lists_its_dead_letters_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    source, container = MemorySource(2), str(tmp_path)

    async def run(partition: str, *records: Record | bytes) -> None:
        for record in records:
            value, time = (record.value, record.timestamp) if isinstance(record, Record) else (record, NOON)
            source.append(partition, [value], timestamp=time)
        await Processor(Visits, name="visits", source=source, container=container).run(until_end=True)

    await run("0", *clicks((0, "a:/:0"), (1, "a:/x:0")), b"no click")
    await run("0", *clicks((2, "a:/buy:99")))
    rows = committed(tmp_path / "visits/output")
    assert visits(rows) == [("a", 0, 2, 3, 99)]
    listed = await anyio.to_thread.run_sync(
        CliRunner().invoke, app, ["dead-letters", "list", "--name", "visits", "--container", container]
    )
    assert "0:2" in listed.output, listed.output
