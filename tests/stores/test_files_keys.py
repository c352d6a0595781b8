"""The folder store keeps objects as plain files: which keys and places it takes, and which versions it gives."""

from __future__ import annotations

import os
from collections.abc import Awaitable
from pathlib import Path

import pytest

from actorproc.errors import ConditionFailed, StoreRefused, UsageError
from actorproc.storage.backend import Stored
from actorproc.stores.folder import FolderStore
from actorproc.stores.folder_metadata import HIDDEN


async def test_reading_leaves_no_trace(files: FolderStore, tmp_path: Path) -> None:
    await files.open()
    assert await files.get("key") is None
    assert (await files.list("")).entries == []
    await files.delete("key")
    with pytest.raises(ConditionFailed):
        await files.put_if_match("key", b"body", "tag")
    assert not (tmp_path / "store").exists()


async def test_an_object_is_a_plain_file_at_its_key(files: FolderStore, tmp_path: Path) -> None:
    await files.put_if_absent("output/partition=a/1.parquet", b"body")
    assert (tmp_path / "store/output/partition=a/1.parquet").read_bytes() == b"body"
    assert os.listdir(tmp_path / "store/output/partition=a") == ["1.parquet"]
    assert os.listdir(tmp_path / "store" / HIDDEN / "drafts") == []


async def test_a_body_that_the_system_takes_in_parts_is_written_whole(
    files: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, bytes(data[:3])))
    await files.put("key", b"0123456789")
    stored = await files.get("key")
    assert stored is not None
    assert stored.body == b"0123456789"


async def test_files_made_by_other_programs_are_objects_too(files: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "store/in").mkdir(parents=True)
    (tmp_path / "store/in/data.json").write_text("{}")
    (entry,) = (await files.list("in/")).entries
    assert (entry.key, entry.size) == ("in/data.json", 2)
    assert await files.get("in/data.json") == Stored(b"{}", entry.tag, 2)
    assert await files.put_if_match("in/data.json", b"[]", entry.tag) != entry.tag


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="it needs /proc to tell what is synced")
async def test_writes_and_deletes_are_synced_unless_fleeting(
    files: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, synced = os.fsync, list[str]()

    def note(handle: int) -> None:
        path = os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), tmp_path / "store")
        synced.append("draft" if path.startswith(HIDDEN) else path)
        fsync(handle)

    async def synced_by(request: Awaitable[object]) -> list[str]:
        synced.clear()
        await request
        return list(synced)

    fleeting = files.fleeting()
    for backend in (files, fleeting):
        await backend.put("a/0", b"so that its folder is there")
    monkeypatch.setattr(os, "fsync", note)
    for backend, expected in ((files, ["draft", "a"]), (fleeting, [])):
        assert await synced_by(backend.put_if_absent("a/1", b"one")) == expected
        assert await synced_by(backend.put("a/1", b"two")) == expected
        assert await synced_by(backend.delete("a/1")) == expected[1:]
    assert await synced_by(fleeting.put("b/0", b"others, that are not, may come to be in its folder")) == ["."]


@pytest.mark.parametrize("key", ["", "/a", "a//b", "a/", "../a", "a/../b", "./a", ".", "a\0b", f"{HIDDEN}/clock"])
async def test_keys_that_cannot_be_files_are_refused(files: FolderStore, key: str, tmp_path: Path) -> None:
    for call in (files.get(key), files.put(key, b""), files.put_if_absent(key, b""), files.delete(key)):
        with pytest.raises(UsageError, match="cannot name a file"):
            await call
    assert os.listdir(tmp_path) == []


async def test_no_listing_leads_out_of_the_folder(files: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    await files.put("key", b"body")
    for prefix in ("../", "../s", "/", "./", "key/../", f"{HIDDEN}/"):
        assert (await files.list(prefix)).entries == []


async def test_a_key_that_clashes_with_a_file_or_folder_is_refused(files: FolderStore) -> None:
    await files.put("a/b", b"body")
    for call in (files.put("a", b"x"), files.put_if_absent("a", b"x"), files.put("a/b/c", b"x")):
        with pytest.raises(StoreRefused, match="cannot be a file beside the ones that are there"):
            await call
    assert await files.get("a") is None
    assert await files.get("a/b/c") is None
    assert (await files.list("a/b/c")).entries == []
    await files.delete("a/b/c")
    await files.delete("a")
    assert await files.get("a/b") is not None


async def test_a_place_that_is_a_file_is_refused_at_open(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file is a file, or lies below one; give a folder"):
        await FolderStore(tmp_path / "file").open()


async def test_a_version_is_later_than_the_one_it_replaces(files: FolderStore, tmp_path: Path) -> None:
    await files.put("key", b"old")
    future = 4_000_000_000 * 10**9
    os.utime(tmp_path / "store/key", ns=(future, future))
    (entry,) = (await files.list("")).entries
    tag = await files.put_if_match("key", b"new", entry.tag)
    tag = await files.put_if_match("key", b"now", tag)
    await files.put("key", b"one")
    assert os.stat(tmp_path / "store/key").st_mtime_ns == future + 3
    with pytest.raises(ConditionFailed):
        await files.put_if_match("key", b"two", tag)


async def test_a_key_that_is_used_again_gets_another_tag(
    files: FolderStore,
) -> None:
    """Files of one size, inode and millisecond differ only in the random part of their tags."""
    tags = [await files.put_if_absent(f"key/{n}", b"body") for n in range(40)]
    assert len({int(tag.partition("-")[0], 16) % 1_000_000 for tag in tags}) > 35
