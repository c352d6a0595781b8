"""Every store in turn, and the folder store by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from actorproc.config.settings import Settings
from actorproc.storage.store import Store
from actorproc.stores import open_store
from actorproc.stores.folder import FolderStore
from tests.servers import clouds, params


@pytest.fixture(params=["memory", "folder", *params(minio=pytest.mark.slow), *clouds()])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An open and empty store of each kind."""
    settings: dict[str, Any] = {}
    if request.param == "memory":
        url = f"memory://{tmp_path}"
    elif request.param == "folder":
        url = str(tmp_path / "store")
    else:
        server = request.getfixturevalue(request.param)
        url, settings = await server.new_url(), server.settings
    async with open_store(url, Settings.load(**settings)) as opened:
        yield opened
    await _sent()


async def _sent() -> None:
    """Where a server refuses a body before it has read it all, aiohttp closes the connection and asyncio goes on
    sending until the server has read the rest or hung up. A loop that ends before leaves it open."""
    loop: Any = asyncio.get_running_loop()
    with anyio.fail_after(30):
        while any(transport.get_write_buffer_size() for transport in list(loop._transports.values())):
            await asyncio.sleep(0.01)


@pytest.fixture
def files(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


@pytest.fixture
def racers(request: pytest.FixtureRequest) -> int:
    """How many may race for a key without waiting for seconds: SeaweedFS makes more than a few queue up."""
    return 3 if "seaweedfs" in request.node.name else 8
