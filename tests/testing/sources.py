"""Sources with records, and their check, for the tests of `check_source`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from actorproc.errors import UsageError
from actorproc.sources import Start
from actorproc.testing import CheckedSource, MemorySource, check_source
from tests.sources.test_own_source import Pages as PagesFromTheirFirst

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


def filled(source: MemorySource, records: int = 7) -> MemorySource:
    """Three partitions, one of them empty."""
    for partition in "01":
        for number in range(records):
            time, key = NOON + timedelta(minutes=number), b"k%d" % number
            source.append(partition, [b"%d" % number], key=key, headers=[("n", key)], timestamp=time)
    return source


def appending(source: MemorySource) -> Callable[[], Awaitable[None]]:
    async def add() -> None:
        source.append("1", [b"news"])

    return add


class Pages(PagesFromTheirFirst):
    async def start(self, partition: str, at: Start) -> str:
        if at != "earliest":
            raise UsageError("earliest only")
        return "0"


async def checked(source: MemorySource, **how: Any) -> CheckedSource:
    return await check_source(lambda: source, add=appending(source), **how)
