"""The list of a source's partitions, while the source does not answer."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from actorproc.errors import SourceError
from actorproc.host.partition_list import PartitionList
from actorproc.partition.host_context import HostContext
from actorproc.runtime.logger import get_logger
from actorproc.sources.protocol import Partition
from actorproc.storage.store import StoreLimits
from actorproc.testing.memory_source import MemorySource


class Flaky(MemorySource):
    """A source that has these partitions, and fails to list them while `away`."""

    away = False

    async def partitions(self) -> Sequence[str | Partition]:
        if self.away:
            raise OSError("away")
        return await super().partitions()


class Listing:
    """A list that is asked at `time`."""

    def __init__(self, partitions: int) -> None:
        self.source = Flaky(partitions)
        self.time = 1000.0
        context = SimpleNamespace(
            source=self.source,
            clock=SimpleNamespace(monotonic=lambda: self.time),
            settings=SimpleNamespace(partition_refresh_interval=60.0),
            store=SimpleNamespace(limits=StoreLimits()),
        )
        self.list = PartitionList(cast(HostContext, context), get_logger(__name__))

    async def failures(self, since: float | None = None) -> list[Any]:
        """The events logged during a call of the list, and the result of the call."""
        self.source.away = True
        self.list.expire()
        with structlog.testing.capture_logs() as logs:
            found = await (self.list() if since is None else self.list(since))
        return [*(log["event"] for log in logs), dict(found)]


@pytest.mark.parametrize("partitions", [0, 2])
async def test_the_last_list_counts_while_the_source_is_away(partitions: int) -> None:
    listing = Listing(partitions)
    known = dict(await listing.list())
    assert len(known) == partitions
    assert await listing.failures() == ["supervisor.partitions_failed", known]


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_newer_list_is_empty_while_the_source_is_away(partitions: int) -> None:
    listing = Listing(partitions)
    await listing.list()
    assert await listing.failures(since=1001.0) == ["supervisor.partitions_failed", {}]


async def test_a_source_that_never_listed_its_partitions_fails() -> None:
    listing = Listing(2)
    listing.source.away = True
    with pytest.raises(SourceError, match="away"):
        await listing.list()
