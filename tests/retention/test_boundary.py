"""The boundary document: it only grows, however many raise it at once, and is read again only when it has changed."""

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace

from actorproc.errors import CorruptObject
from actorproc.retention.boundary import NOTHING_TRIMMED, Boundaries, change_boundary, raise_boundary, read_boundary
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore

LAYOUT = ProcessorLayout("p")
KEY = LAYOUT.boundary("0")


@pytest.fixture
def store() -> Store:
    return Store(MemoryStore())


async def test_without_an_object_nothing_was_trimmed(store: Store) -> None:
    assert await read_boundary(store, KEY) == NOTHING_TRIMMED
    assert NOTHING_TRIMMED.lowest == 0


async def test_it_is_raised_and_never_lowered(store: Store) -> None:
    assert (await raise_boundary(store, KEY, 5)).lowest == 5
    assert (await raise_boundary(store, KEY, 3)).lowest == 5
    assert (await read_boundary(store, KEY)).lowest == 5


async def test_of_many_that_raise_it_at_once_the_highest_holds(store: Store) -> None:
    async with anyio.create_task_group() as tasks:
        for lowest in (4, 9, 2, 7):
            tasks.start_soon(raise_boundary, store, KEY, lowest)
    assert (await read_boundary(store, KEY)).lowest == 9


async def test_an_unchanged_boundary_is_not_written(store: Store) -> None:
    await raise_boundary(store, KEY, 5)
    before = store.requests.copy()
    await change_boundary(store, KEY, lambda found: replace(found, lowest=5))
    assert store.requests - before == {"get": 1}


async def test_all_of_them_are_read_again_only_where_they_have_changed(store: Store) -> None:
    boundaries = Boundaries(LAYOUT.boundaries)
    assert await boundaries.read(store) == {}
    await raise_boundary(store, LAYOUT.boundary("0"), 5)
    await raise_boundary(store, LAYOUT.boundary("a/b"), 7)
    assert {name: found.lowest for name, found in (await boundaries.read(store)).items()} == {"0": 5, "a/b": 7}
    await raise_boundary(store, LAYOUT.boundary("0"), 6)
    before = store.requests.copy()
    assert (await boundaries.read(store))["0"].lowest == 6
    assert store.requests - before == {"list": 1, "get": 1}


async def test_an_invalid_boundary_is_named(store: Store) -> None:
    await store.put(KEY, b'{"version": 1, "lowest": null}')
    with pytest.raises(CorruptObject, match=r"boundaries/0\.json"):
        await read_boundary(store, KEY)
