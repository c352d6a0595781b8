"""The folder store while folders come and go under it: its own, and those of the objects."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from actorproc.errors import StoreRefused, StoreUnavailable
from actorproc.storage.backend import Stored
from actorproc.stores.folder import FolderStore
from actorproc.stores.folder_metadata import HIDDEN


@pytest.mark.parametrize("instead", [None, "empty", "another", "older"])
@pytest.mark.parametrize("met", ["written", "found"])
async def test_a_folder_that_is_away_is_unavailable_and_not_made_again(
    tmp_path: Path, instead: str | None, met: str
) -> None:
    """As with a lost mount. The folder of the mount point may have objects of an earlier such loss."""
    root = tmp_path / "store"
    files = FolderStore(root)
    if instead == "older":
        await FolderStore(root).put("first", b"")
        (root / HIDDEN / "clock").write_bytes(b"")
    for each in (FolderStore(root), files) if met == "found" else (files,):
        await each.open()
        if met == "written" or each is not files:
            tag = await each.put("a/key", b"body")
    lane, fleeting = files.lane(), files.fleeting()
    root.rename(tmp_path / "away")
    if instead == "empty":
        root.mkdir()
    elif instead is not None:
        await FolderStore(root).put("a/key", b"hidden later")
        if instead == "older":  # as stores were made before their clocks held anything
            (root / HIDDEN / "clock").write_bytes(b"")
    there = sorted(root.rglob("*"))
    for each in (files, lane, fleeting):
        for request in (
            each.put("a/key", b"x"), each.put_if_absent("b/new", b"x"), each.put_if_match("a/gone", b"x", tag),
            each.list(""),
            each.get("a/none"), each.get("a/key"), each.delete("a/none"), each.put_if_absent("a/key", b"x"),
        ):  # fmt: skip
            with pytest.raises(StoreUnavailable, match=r"store is away: .actorproc/clock in it is not what it was"):
                await request
    assert sorted(root.rglob("*")) == there
    shutil.rmtree(root, ignore_errors=True)
    (tmp_path / "away").rename(root)
    assert await files.get("a/key") == Stored(b"body", tag, 4)
    await files.put_if_absent("b/new", b"x")
    assert await lane.put_if_match("a/key", b"more", tag)


async def test_who_only_reads_need_not_see_the_hidden_folder(
    files: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    tag = await files.put("key", b"body")
    monkeypatch.setattr("actorproc.stores.folder_metadata.open", refuse, raising=False)
    reading = FolderStore(tmp_path / "store")
    await reading.open()
    assert await reading.get("key") == Stored(b"body", tag, 4)


async def test_a_writer_without_the_right_to_read_the_time_is_refused(
    files: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the writer's own clock, a young object may seem old enough to be deleted."""

    def refuse(path: str | int, *args: object, **keywords: object) -> None:
        if str(path).endswith("/clock"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        really(path, *args, **keywords)

    await files.put("key", b"body")
    really: Any = os.utime
    monkeypatch.setattr(os, "utime", refuse)
    with pytest.raises(StoreRefused, match=r"clock: user .* must be able to read and write there"):
        await FolderStore(tmp_path / "store").put("key", b"more")


async def test_a_folder_that_was_removed_and_created_again_is_another_store(files: FolderStore, tmp_path: Path) -> None:
    await files.put("key", b"body")
    shutil.rmtree(tmp_path / "store")
    await FolderStore(tmp_path / "store").put("key", b"new")
    with pytest.raises(StoreUnavailable, match="If it was replaced on purpose, restart the processes"):
        await files.put("key", b"body")
    assert (tmp_path / "store/key").read_bytes() == b"new"


async def test_a_removed_store_is_not_created_again_by_a_pending_write(
    files: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(draft: str, path: str) -> None:
        (tmp_path / "store").rename(tmp_path / "away")
        really(draft, path)

    really = os.link
    await files.put("other", b"body")
    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreUnavailable, match="No such file"):
        await files.put_if_absent("a/key", b"body")
    assert not (tmp_path / "store").exists()


async def test_folders_go_with_the_last_object_in_them(files: FolderStore, tmp_path: Path) -> None:
    for key in ("staged/tx/0/a", "staged/tx/0/b", "staged/tx/1/a", "top"):
        await files.put(key, b"body")
    for key in ("staged/tx/0/a", "staged/tx/1/a", "top"):
        await files.delete(key)
    assert [str(path.relative_to(tmp_path / "store")) for path in (tmp_path / "store/staged").rglob("*")] == [
        "staged/tx", "staged/tx/0", "staged/tx/0/b",
    ]  # fmt: skip
    await files.delete("staged/tx/0/b")
    assert os.listdir(tmp_path / "store") == [HIDDEN]


@pytest.mark.parametrize("verb", ["link", "rename"])
async def test_a_writer_creates_a_removed_folder_again(
    files: FolderStore, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    folders = iter(["a/b/c", "a/b", "a/b/c", "a/b"])

    def move(draft: str, path: str) -> None:
        for folder in [next(folders, ""), next(folders, "")]:
            if folder and (Path(path).parents[3] / folder).is_dir():
                os.rmdir(Path(path).parents[3] / folder)
        really(draft, path)

    really = getattr(os, verb)
    await files.put("other", b"body")
    monkeypatch.setattr(os, verb, move)
    tag = await (files.put_if_absent("a/b/c/key", b"body") if verb == "link" else files.put("a/b/c/key", b"body"))
    assert await files.get("a/b/c/key") == Stored(b"body", tag, 4)


async def test_a_folder_removed_while_those_in_it_are_made_is_made_again(
    files: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkdir(path: str) -> None:
        if path.endswith("a/b") and len(made) < 3:
            os.rmdir(os.path.dirname(path))
        made.append(path)
        really(path)

    made: list[str] = []
    really = os.mkdir
    await files.put("other", b"body")
    monkeypatch.setattr(os, "mkdir", mkdir)
    await files.put_if_absent("a/b/key", b"body")
    assert (tmp_path / "store/a/b/key").read_bytes() == b"body"


async def test_writers_and_removers_of_one_folder_do_not_disturb_each_other(
    files: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of rounds in which the folders come and go all the time."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # power cuts are no part of this test
    done = anyio.Event()
    await files.put("a/stays", b"")

    async def write_and_remove(who: int) -> None:
        for n in range(100):
            key = f"a/b/{who % 2}/{who}.{n}"
            tag = await (files.put_if_absent(key, b"body") if n % 2 else files.put(key, b"body"))
            assert await files.get(key) == Stored(b"body", tag, 4)
            await files.delete(key)
            assert await files.get(key) is None

    async def look() -> None:
        while not done.is_set():
            assert "a/stays" in {entry.key for entry in (await files.list("")).entries}

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        async with anyio.create_task_group() as writers:
            for who in range(12):
                writers.start_soon(write_and_remove, who)
        done.set()
    assert os.listdir(tmp_path / "store/a") == ["stays"]
