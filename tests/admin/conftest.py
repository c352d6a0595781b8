"""Stores whose files can be made older, and a processor that commits into them."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actorproc.admin.retained import RetainedLog, RetainedOutput
from actorproc.config.settings import Settings
from actorproc.runtime.clock import Clock
from actorproc.storage.names import ProcessorLayout, number_of
from actorproc.storage.store import Store
from actorproc.stores import open_store
from tests.spark.committing import Fleet

LAYOUT = ProcessorLayout("numbers")
SETTINGS = Settings.load()
HOUR = 3600.0


class Later(Clock):
    """The machine's clock, ahead by a number of seconds."""

    ahead = 0.0

    def wall(self) -> float:
        return super().wall() + self.ahead


class Place:
    """An open store that time can be made to pass for."""

    def __init__(self, store: Store, clock: Later, folder: Path | None) -> None:
        self.store, self.clock, self._folder = store, clock, folder

    def wait(self, seconds: float) -> None:
        """All objects become older by so much."""
        self.clock.ahead += seconds
        for path in self._folder.rglob("*.parquet") if self._folder else ():
            os.utime(path, (time.time() - self.clock.ahead,) * 2)

    async def numbers(self, prefix: str) -> list[int]:
        """Numbers of the files that are there."""
        return [number_of(entry.key) for entry in (await self.store.list(prefix)).entries]


@pytest.fixture(params=["memory", "folder"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    clock = Later()
    folder = tmp_path / "store" if request.param == "folder" else None
    async with open_store(str(folder or f"memory://{tmp_path}"), SETTINGS, clock=clock) as store:
        yield Place(store, clock, folder)


@pytest.fixture
def fleet(place: Place) -> Fleet:
    return Fleet(place.store)


@pytest.fixture
def kept(place: Place) -> RetainedOutput:
    return RetainedOutput(place.store, LAYOUT)


@pytest.fixture
def kept_log(place: Place) -> RetainedLog:
    return RetainedLog(place.store)
