"""The records of a chaos run, the handler that ends each in its own way, and which end a record may have had."""

from __future__ import annotations

import zlib
from typing import Any

import orjson

from actorproc.clock import SYSTEM
from actorproc.context import PartitionContext
from actorproc.handler import PartitionHandler
from actorproc.records import Batch, Record

SCHEMA = "producer string, number long, part int, parts int, host string, epoch long, attempt int, token string"

KINDS = {
    "row": 480,  # one row
    "many": 140,  # two to five rows
    "drop": 200,  # nothing
    "raise": 12,  # fails the whole batch, every time
    "alone": 12,  # says itself that this record alone has failed
    "misfit": 12,  # emits a row that does not fit the schema
    "letter": 30,  # gives the record up
    "by-host": 25,  # one of UNSTEADY, another one on each host
    "by-epoch": 25,  # ... under each epoch
    "by-attempt": 40,  # ... at each attempt
    "commit": 12,  # one row, and a commit in the middle of the batch
    "slow": 11,  # one row, after a tenth of a second
    "long": 1,  # one row, after longer than a handoff may take
}
"""Kind of record -> how many in a thousand."""

UNSTEADY = ("row", "many", "drop", "raise", "letter")
FAILURES = {"raise": "Spoilt", "alone": "Spoilt", "misfit": "Misfit", "letter": "DeadLetter"}
"""Ends that are a dead letter -> the type of error in it."""

SLOW, LONG = 0.1, 3.0  # seconds

_WHEEL = [kind for kind, share in KINDS.items() for _ in range(share)]


def key_of(producer: str, number: int) -> bytes:
    """Keys repeat, so that each burst of a producer goes to a few partitions and all get their share over time."""
    return b"key-%d" % (_hash(f"{producer}/{number // 16}") % 97)


def value_of(producer: str, number: int) -> bytes:
    return orjson.dumps({"producer": producer, "number": number, "text": "x" * (number % 50)})


def kind_of(producer: str, number: int) -> str:
    """The kind of a record, by its hash."""
    return _WHEEL[_hash(f"kind/{producer}/{number}") % len(_WHEEL)]


def end_of(producer: str, number: int, host: str, epoch: int, attempt: int) -> str:
    """How the handler ends a record there and then: 'row', 'many', 'drop' or one of FAILURES."""
    kind = kind_of(producer, number)
    factor = {"by-host": host, "by-epoch": epoch, "by-attempt": attempt}.get(kind)
    if factor is not None:
        return UNSTEADY[_hash(f"{producer}/{number}/{factor}") % len(UNSTEADY)]
    return "row" if kind in ("commit", "slow", "long") else kind


def may_end_silently(producer: str, number: int) -> bool:
    return kind_of(producer, number) in ("drop", "by-host", "by-epoch", "by-attempt")


def parts_of(end: str, number: int) -> int:
    """How many rows the end leaves."""
    return {"row": 1, "many": 2 + number % 4}.get(end, 0)


def _hash(text: str) -> int:
    return zlib.crc32(text.encode())


class Spoilt(Exception):
    """A record that fails."""


class ChaosHandler(PartitionHandler):
    """Does to each record what its hash says. All rows of one attempt bear its token."""

    output_schema = SCHEMA

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        token = SYSTEM.nonce()
        for record in batch:
            await self._one(record, record.json(), ctx, token)

    async def _one(self, record: Record, event: dict[str, Any], ctx: PartitionContext, token: str) -> None:
        producer, number = event["producer"], event["number"]
        kind, end = kind_of(producer, number), end_of(producer, number, ctx.host, ctx.epoch, ctx.attempt)
        if kind in ("slow", "long") and ctx.attempt == 1:  # else a failing neighbour would make it many times as long
            await SYSTEM.sleep(SLOW if kind == "slow" else LONG)
        row = {"producer": producer, "number": number, "parts": parts_of(end, number)}
        row |= {"host": ctx.host, "epoch": ctx.epoch, "attempt": ctx.attempt, "token": token}
        match end:
            case "row" | "many":
                ctx.emit_many(record, [row | {"part": part} for part in range(row["parts"])])
            case "misfit":
                ctx.emit(record, row | {"part": 0, "number": "no number"})
            case "letter":
                ctx.dead_letter(record, "the record asked for it")
            case "alone":
                ctx.fail(record, Spoilt(f"record {record.sequence} fails alone"))
            case "raise":
                raise Spoilt(f"record {record.sequence} fails its batch")
        if kind == "commit":
            await ctx.commit(record)
