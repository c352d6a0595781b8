"""The display of a query's progress on a terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import anyio
import pytest
from pyspark.sql import DataFrame, SparkSession

import actorproc.cli.spark_show
from actorproc.cli.spark_show import Display, Totals, summary
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.spark.progress import Progress
from tests.spark.committing import Fleet
from tests.spark.jobs import Runs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, sink: str) -> str:
    """The terminal's text about a micro-batch into this sink, in virtual time."""
    totals, terminal = Totals(), Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(actorproc.cli.spark_show, "SYSTEM", VirtualClock(0))

    async def lag() -> None:
        return None

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Display("app:late", totals, lag).run)
            await anyio.sleep(1)
            totals.add(Progress(0, True, 18, 1.0, None, None, sink))
            await anyio.sleep(3)
            tasks.cancel_scope.cancel()

    run(work())
    return terminal.getvalue()


def test_a_terminal_shows_a_table_unless_the_sink_is_the_console(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "rows per second" in shown(monkeypatch, "ForeachBatchSink")
    assert "rows per second" not in shown(
        monkeypatch, "org.apache.spark.sql.execution.streaming.ConsoleTable$@4aed722a"
    )


def test_late_rows_are_counted() -> None:
    report = {
        "batchId": 3, "batchDuration": 1000, "durationMs": {"addBatch": 900}, "sink": {"description": "Parquet"},
        "sources": [{"numInputRows": 50, "startOffset": None, "endOffset": None}],
        "stateOperators": [{"numRowsTotal": 7, "numRowsDroppedByWatermark": 30}, {"numRowsDroppedByWatermark": 2}],
    }  # fmt: skip
    totals = Totals()
    for _ in range(2):
        totals.add(Progress.from_document(report, "the output"))
    assert summary("app:late", totals, 0, 1.0).endswith("; behind the watermark, Spark dropped 64 late rows")


async def test_sparks_console_sink_has_the_expected_name(spark: SparkSession, tmp_path: Path) -> None:
    fleet = Fleet(str(tmp_path / "state"))
    await fleet.commit(p0=10)

    def writer(rows: DataFrame) -> Any:
        return rows.writeStream.format("console")

    console = Runs(spark, fleet, tmp_path / "c", writer)
    await console.to_end()
    assert "ConsoleTable" in console.reports[0].sink
