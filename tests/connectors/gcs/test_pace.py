"""Cloud Storage takes one write a second for one object: what a strict double of it means for actorproc."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actorproc.config.settings import Settings
from actorproc.runtime.tasks import gather
from actorproc.storage.probe import ensure_safe
from actorproc.storage.store import Conflict, Store
from actorproc.stores import open_store
from tests.connectors.gcs.server import double


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[Store]:
    with double(tmp_path, writes_per_second=1) as server:
        async with open_store(await server.new_url(), Settings.load(**server.settings)) as store:
            yield store


async def test_a_start_finds_a_bucket_safe_that_throttles_rewrites(strict: Store) -> None:
    await ensure_safe(strict, "probe/")
    assert strict.failures["throttled"] > 0
    assert (await strict.list("")).entries == []


async def test_hosts_that_change_one_document_at_once_all_get_their_turn(strict: Store) -> None:
    await strict.create("group.json", b"0 start")

    async def join(who: int) -> None:
        while True:
            found = await strict.get("group.json")
            assert found is not None
            try:
                await strict.swap("group.json", b"%d %d" % (int(found.body.split()[0]) + 1, who), found.tag)
                return
            except Conflict:
                continue

    await gather(range(5), join)
    found = await strict.get("group.json")
    assert found is not None
    assert found.body.startswith(b"5 ")
