"""`run_handler`, for users' tests of handlers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from actorproc import (
    Batch,
    Decision,
    PartitionContext,
    PartitionHandler,
    Record,
    RecordHandler,
    Settings,
)
from actorproc.errors import EndNotReached, UsageError
from actorproc.testing import run_handler

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


class Times(BaseModel):
    by: int = 2


class Scaled(RecordHandler):
    Options = Times
    output_schema = "n long, attempt int"

    def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, Any]:
        return {"n": record.json() * ctx.options.by, "attempt": ctx.attempt}


class Facts(PartitionHandler):
    output_schema = "key binary, headers map<string, binary>, at timestamp, value binary"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, (record.key, dict(record.headers), record.timestamp, record.value))


class Stops(Scaled):
    def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
        return Decision.STOP


async def test_run_handler_returns_rows_and_dead_letters() -> None:
    result = await run_handler(Scaled, [b"1", b"no number", b"3"])
    assert result.rows == [{"n": 2, "attempt": 1, "_sequence": 0}, {"n": 6, "attempt": 1, "_sequence": 2}]
    (letter,) = result.dead_letters
    assert (letter["sequence"], letter["value"], letter["attempts"]) == (1, "no number", 3)
    assert letter["error"]["type"] == "JSONDecodeError"


async def test_run_handler_takes_options_and_settings_as_arguments_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "actorproc.toml").write_text("nonsense = 1")
    monkeypatch.setenv("ACTORPROC_OPTION_BY", "nonsense")
    monkeypatch.setenv("ACTORPROC_MAX_ATTEMPTS", "nonsense")
    result = await run_handler(Scaled, [b"1", b"-"], options={"by": 10}, settings=Settings(max_attempts=1))
    assert [row["n"] for row in result.rows] == [10]
    assert [letter["attempts"] for letter in result.dead_letters] == [1]
    assert [row["n"] for row in (await run_handler(Scaled, [b"1"])).rows] == [2]


async def test_run_handler_takes_records_and_tombstones() -> None:
    whole = Batch.of("7", [b"v"], [40], keys=[b"k"], headers=[[("trace", b"1")]], timestamps=[NOON])
    first, second = (await run_handler(Facts, [*whole, None])).rows
    assert first == {"key": b"k", "headers": {"trace": b"1"}, "at": NOON, "value": b"v", "_sequence": 0}
    assert (second["key"], second["headers"], second["value"], second["_sequence"]) == (None, {}, None, 1)


async def test_run_handler_gives_a_value_no_timestamp() -> None:
    class Times(RecordHandler):
        output_schema = "time timestamp"

        def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, Any]:
            return {"time": record.timestamp}

    result = await run_handler(Times, list(Batch.of("0", [b"x"], [0])))
    assert result.rows == [{"time": None, "_sequence": 0}]


async def test_run_handler_retries_at_once_by_default() -> None:
    with anyio.fail_after(20):
        for _ in range(3):
            assert len((await run_handler(Scaled, [b"-"], settings=Settings(max_attempts=8))).dead_letters) == 1
    with anyio.move_on_after(1) as cut:
        await run_handler(Scaled, [b"-"], settings=Settings(retry_backoff=3600, retry_backoff_max=3600))
    assert cut.cancelled_caught


async def test_run_handler_says_why_the_end_was_not_reached() -> None:
    with pytest.raises(EndNotReached, match="JSONDecodeError"):
        await run_handler(Stops, [b"-"])


@pytest.mark.parametrize("records", [["text"], [{"a": 1}], b"bytes"])
async def test_run_handler_refuses_other_values_with_their_index(records: Any) -> None:
    with pytest.raises(UsageError, match=r"records\[0\] = .*bytes"):
        await run_handler(Scaled, records)


class Place(PartitionHandler):
    output_schema = "from string, at long, epoch int"

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, (record.partition, record.sequence, ctx.epoch))


async def test_a_batch_keeps_its_partition_and_sequences() -> None:
    batch = Batch.of("events-3", [b"a", b"b"], [1042, 1050])
    result = await run_handler(Place, batch, epoch=7, state={"k": 1})
    found = [(row["from"], row["at"], row["epoch"], row["_sequence"]) for row in result.rows]
    assert found == [("events-3", 1042, 7, 1042), ("events-3", 1050, 7, 1050)]
    assert result.state == {"k": 1}


async def test_errors_of_the_handler_are_raised_with_their_traceback() -> None:
    with pytest.raises(ValueError, match="invalid literal") as raised:
        await run_handler(Scaled, [b"1", b"no number"], raise_errors=True)
    assert "process_record" in [entry.name for entry in raised.traceback]
    assert len((await run_handler(Scaled, [b"1"], raise_errors=True)).rows) == 1
