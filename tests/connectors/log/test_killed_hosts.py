"""Hosts are killed while rows go to another log, which grows meanwhile: each committed row is there once."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from actorproc.admin.logs import grow
from actorproc.storage.store import Store
from actorproc.stores import open_store
from tests.connectors.log.test_sink import numbers
from tests.sinks.killed_hosts import deliver_with_killed_hosts

pytestmark = pytest.mark.long

EVENTS = 40_000


def test_each_committed_row_is_in_the_log_once(tmp_path: Path) -> None:
    def opened() -> Store:
        return open_store(str(tmp_path / "by-word"))

    async def read() -> list[int]:
        async with opened() as store:
            return await numbers(store)

    async def grow_twice() -> None:
        async with opened() as store:
            await grow(store, 8)

    options = [word for one in ("key=word", "partitions=4") for word in ("--sink-option", f"again.{one}")]
    sink = ["--sink", "again=log:./by-word", *options]
    deliver_with_killed_hosts(
        tmp_path, sink, EVENTS, lambda: anyio.run(grow_twice), lambda: len(anyio.run(read))
    )  # fmt: skip
    assert sorted(anyio.run(read)) == list(range(EVENTS))
