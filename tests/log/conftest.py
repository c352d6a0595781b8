"""The stores on which the log is tested."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actorproc.config.settings import Settings
from actorproc.storage.store import Store
from actorproc.stores import open_store
from tests.servers import S3Server, params


@pytest.fixture(params=["memory", "folder", *params(minio=pytest.mark.slow)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An open and empty store of each kind."""
    if request.param in ("memory", "folder"):
        url, settings = f"memory://{tmp_path}" if request.param == "memory" else str(tmp_path / "log"), Settings.load()
    else:
        server: S3Server = request.getfixturevalue(request.param)
        url, settings = await server.new_url(), Settings.load(**server.settings)
    async with open_store(url, settings) as opened:
        yield opened
