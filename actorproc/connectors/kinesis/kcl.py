"""Leases of the Kinesis Client Library (KCL), kept in DynamoDB: where a processor that comes from it begins.

All versions of the library keep an item for each shard, in a table that bears the application's name.
https://github.com/awslabs/amazon-kinesis-client/tree/master/amazon-kinesis-client/src/main/java/software/amazon/kinesis/leases/dynamodb
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from actorproc.connectors.kinesis.columns import NUMBER
from actorproc.connectors.kinesis.errors import CLIENT_ERRORS, NOT_FOUND, code_of, first_line
from actorproc.connectors.kinesis.newest import place_after_newest
from actorproc.connectors.kinesis.position import SEQUENCE_BITS, Position
from actorproc.connectors.kinesis.stream import Shard, Stream
from actorproc.errors import SourceError, UsageError

KCL = "kcl:"
"""Begins the name of an application that reads with the library."""

_ENDED = "SHARD_END"
_FIRST = "TRIM_HORIZON"


class Lease(NamedTuple):
    """How far a shard is processed.

    Attributes:
        checkpoint: sequence number of the last record; `SHARD_END`: all; `TRIM_HORIZON`, `LATEST` or `AT_TIMESTAMP`:
            none.
        place: number of the last record within an aggregated one.
    """

    checkpoint: str
    place: int


async def read_leases(client: Any, application: str, stream: str) -> dict[str, Lease]:
    """The leases of a stream, by shard.

    Args:
        client: of DynamoDB.

    Raises:
        UsageError: there is no such application.
        SourceError: the table cannot be read, or is not the library's.
    """
    try:
        pages = client.get_paginator("scan").paginate(TableName=application, ConsistentRead=True)
        items = [item async for page in pages for item in page["Items"] if "checkpoint" in item]
        return dict(_lease(item) for item in items if _is_of(item["leaseKey"]["S"], stream))
    except CLIENT_ERRORS as error:
        if code_of(error) == NOT_FOUND:
            raise UsageError(f"start_from = {KCL}{application}: DynamoDB has no such table in this region") from None
        raise SourceError(f"leases in {application} cannot be read: {first_line(error)}") from error
    except (KeyError, ValueError):
        raise SourceError(f"table {application} has items that are no leases of the Kinesis Client Library") from None


def _is_of(key: str, stream: str) -> bool:
    """An application of one stream has the shard as the key; one of several `ACCOUNT:STREAM:CREATED:SHARD`."""
    return ":" not in key or key.split(":")[-3:-2] == [stream]


def _lease(item: Mapping[str, Any]) -> tuple[str, Lease]:
    place = int(item.get("checkpointSubSequenceNumber", {"N": "0"})["N"])
    return item["leaseKey"]["S"].rpartition(":")[2], Lease(item["checkpoint"]["S"], place)


async def place_in(stream: Stream, shard: str, leases: Mapping[str, Lease]) -> Position | None:
    """Where to read on; None: the library has not read this shard. Raises as `Stream.pages`."""
    shards = await stream.shards()
    lease = leases.get(shard)
    if lease is None and _is_before(shard, leases, shards):
        return await place_after_newest(stream, shard)  # the library has removed its lease at its end
    if lease is None:
        known = shard in shards and any(parent in leases for parent in shards[shard].parents)
        return Position() if known else None
    if lease.checkpoint == _ENDED:
        return await place_after_newest(stream, shard)
    if lease.checkpoint == _FIRST:
        return Position()
    return await _after(stream, shard, lease) if lease.checkpoint.isdecimal() else None


def _is_before(shard: str, leases: Mapping[str, Lease], shards: Mapping[str, Shard]) -> bool:
    """Whether the library has a lease of a shard that follows this one."""
    following = [other.name for other in shards.values() if shard in other.parents]
    return any(name in leases or _is_before(name, leases, shards) for name in following)


async def _after(stream: Stream, shard: str, lease: Lease) -> Position:
    """After the record of the lease; before it, if it is an aggregated one that is not processed to its end."""
    batch = await stream.at(shard, lease.checkpoint)
    if not len(batch):
        return Position(lease.checkpoint)
    number = dict(batch.headers[-1])[NUMBER] or b""
    if int(number.partition(b".")[2] or 0) <= lease.place:
        return Position().after(lease.checkpoint, batch.last)
    return Position.at_time(batch.last >> SEQUENCE_BITS)
