"""The walk over the folders of a store, on each kind: services differ in the order of '/' and other characters."""

from __future__ import annotations

from actorproc.storage.backend import Listing
from actorproc.storage.locations import folders_with
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore

FOLDERS = ["a", "b", "b-1", "b-c", "b.d", "b0", "bb", "c"]


async def test_every_folder_with_the_file_is_found_once(store: Store) -> None:
    for folder in FOLDERS:
        await store.put(f"{folder}/group.json", b"x")
        await store.put(f"{folder}/other/deeper", b"x")
    await store.put("b+/other", b"x")
    await store.put("b-file", b"x")
    assert sorted([folder async for folder in folders_with(store, "group.json")]) == FOLDERS


class ByFolders(MemoryStore):
    """Lists what is in a folder before its neighbours, as an account with a hierarchical namespace does."""

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        listing = await super().list(prefix)
        entries = sorted(listing.entries, key=lambda entry: entry.key.split("/"))
        behind = [entry for entry in entries if entry.key.split("/") > after.split("/")]
        return Listing(behind[:limit], listing.now)


async def test_a_store_that_lists_folder_by_folder_is_walked_whole() -> None:
    await test_every_folder_with_the_file_is_found_once(Store(ByFolders()))


class IgnoresAfter(MemoryStore):
    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        return await super().list(prefix, "", limit)


async def test_a_store_that_does_not_know_where_to_go_on_ends_the_walk() -> None:
    store = Store(IgnoresAfter())
    await store.put("a/group.json", b"x")
    await store.put("b/group.json", b"x")
    assert [folder async for folder in folders_with(store, "group.json")] == ["a"]
