"""The reference stream: records that say what must become of them, a handler that does it, and the judge who compares."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import orjson

from actorproc.clock import SYSTEM
from actorproc.context import PartitionContext
from actorproc.handler import PartitionHandler
from actorproc.records import Batch, Record
from actorproc.testing.loop import current_loop

KINDS = {"row": 50, "many": 12, "drop": 20, "fail": 2, "letter": 3, "unsteady": 12, "slow": 1}
"""Kind of record -> how many in a hundred.

row: one row. many: several. drop: none. fail: raises, every time. letter: the handler gives it up itself.
unsteady: one of these, another one at each attempt. slow: one row, after a while.
"""

_UNSTEADY = ("row", "many", "drop", "fail", "letter")


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a record. `rows`: those that bear its sequence; `letters`: its dead letters."""

    partition: str
    sequence: int
    value: bytes
    rows: Sequence[Mapping[str, Any]]
    letters: Sequence[Mapping[str, Any]]


Judge = Callable[[Ended], "str | None"]
"""Says what is wrong with the end of a record; None: nothing."""


def reference_value(random: Random) -> bytes:
    """A record that says by itself what must become of it."""
    kind = random.choices(list(KINDS), list(KINDS.values()))[0]
    return orjson.dumps({"kind": kind, "id": random.getrandbits(48), "rows": random.randint(2, 5)})


class ReferenceHandler(PartitionHandler):
    """Does what each record asks for. Rows carry the attempt that made them: those of one record must share it."""

    output_schema = "id long, part int, parts int, attempt string"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        attempt = f"{ctx.host}/{ctx.epoch}/{ctx.attempt}/{current_loop().now!r}"
        for record in batch:
            await self._one(record, record.json(), attempt, ctx)

    async def _one(self, record: Record, asked: dict[str, Any], attempt: str, ctx: PartitionContext) -> None:
        kind = asked["kind"]
        if kind == "unsteady":
            kind = _UNSTEADY[zlib.crc32(f"{attempt}/{asked['id']}".encode()) % len(_UNSTEADY)]
        elif kind == "slow":
            await SYSTEM.sleep(asked["id"] % 40 / 10)
            kind = "row"
        match kind:
            case "row" | "many":
                parts = asked["rows"] if kind == "many" else 1
                rows = [{"id": asked["id"], "part": n, "parts": parts, "attempt": attempt} for n in range(parts)]
                ctx.emit_many(record, rows)
            case "letter":
                ctx.dead_letter(record, "the record asked for it")
            case "fail":
                raise ValueError(f"record {record.sequence} fails")


def judge_reference(ended: Ended) -> str | None:
    """Compare with what the record asked for."""
    asked = orjson.loads(ended.value)
    rows, letters, kind = len(ended.rows), len(ended.letters), asked["kind"]
    if rows and letters:
        return "is a row and a dead letter"
    if rows:
        if len({row["attempt"] for row in ended.rows}) > 1:
            return f"has rows of several attempts: {sorted(row['attempt'] for row in ended.rows)}"
        parts = ended.rows[0]["parts"]
        if [row["part"] for row in ended.rows] != list(range(parts)) or {row["id"] for row in ended.rows} != {
            asked["id"]
        }:
            return f"should have {parts} rows, has {list(ended.rows)}"
    expected = {
        "row": (1, 0),
        "slow": (1, 0),
        "many": (asked["rows"], 0),
        "drop": (0, 0),
        "fail": (0, 1),
        "letter": (0, 1),
    }
    allowed = [(1, 0), (asked["rows"], 0), (0, 0), (0, 1)] if kind == "unsteady" else [expected[kind]]
    if (rows, letters) not in allowed:
        return f"of kind {kind!r} ended as {rows} rows and {letters} dead letters, not as one of {allowed}"
    return None
