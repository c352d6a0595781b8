"""Capture: records as they are."""

from __future__ import annotations

from datetime import UTC, datetime

from actorproc import Capture
from actorproc.records import Batch
from tests.handlers.running import run


async def test_records_are_stored_as_they_are() -> None:
    time = datetime(2013, 1, 1, 5, tzinfo=UTC)
    headers = [("source", b"jfk"), ("source", b"\xff")]
    batch = Batch.of(
        "0",
        [b"\xffraw", None, b""],
        [4, 6, 7],
        keys=[b"k", None, b""],
        headers=[headers, [], []],
        timestamps=[time, None, time],
    )
    result = await run(Capture, batch)
    assert result.table is not None
    assert result.table.schema.names == ["key", "value", "headers", "timestamp", "_sequence"]
    assert result.letters == {}
    assert result.rows == [
        {
            "key": b"k",
            "value": b"\xffraw",
            "headers": [{"key": k, "value": v} for k, v in headers],
            "timestamp": time,
            "_sequence": 4,
        },
        {"key": None, "value": None, "headers": None, "timestamp": None, "_sequence": 6},
        {"key": b"", "value": b"", "headers": None, "timestamp": time, "_sequence": 7},
    ]
