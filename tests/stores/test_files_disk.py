"""The folder store on a disk that hangs or is full, or beside another disk."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from actorproc.errors import StoreRefused, StoreUnavailable
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores.folder import _THREADS, FolderStore


async def test_requests_of_a_lane_have_threads_of_their_own(
    files: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, free, really = Store(files), threading.Event(), os.scandir
    lane = store.lane()
    await lane.put("key", b"old")
    monkeypatch.setattr(os, "scandir", lambda path: free.wait(10) and really(path))  # a disk that does not answer
    async with anyio.create_task_group() as tasks:
        try:
            for _ in range(store.limits.concurrency):
                tasks.start_soon(store.list, "key")
            await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(1) as waited:
                await lane.put("key", b"heartbeat")
        finally:
            free.set()
            tasks.cancel_scope.cancel()
    assert not waited.cancelled_caught
    assert store.requests["put"] == 2


async def test_a_reader_of_a_hanging_disk_gives_up_at_its_deadline(files: FolderStore, tmp_path: Path) -> None:
    await files.put("here", b"body")
    os.mkfifo(tmp_path / "store" / "key")  # who opens it waits for one who writes
    handles, place = os.listdir("/proc/self/fd"), f"{tmp_path}/store/key"
    store = Store(files, limits=StoreLimits(timeout=0.05, patience=0.05))
    threads = threading.active_count()
    with anyio.fail_after(10):
        for _ in range(2 * _THREADS):
            with pytest.raises(StoreUnavailable, match="no answer to get within"):
                await store.get("key", tail=1)
        with pytest.raises(StoreUnavailable, match="no answer to list within"):
            await store.list("")
        with pytest.raises(StoreUnavailable, match="no answer to put within"):
            await store.put("never begun", b"")
        with anyio.move_on_after(0.05) as scope:
            await files.get("here")
    assert scope.cancelled_caught
    assert threading.active_count() <= threads + _THREADS
    lane = await Store(files.lane()).get("here")
    assert lane is not None
    with anyio.fail_after(10):
        again = None
        while again is None:  # the disk is back
            with suppress(OSError):  # its reader has ended
                os.close(os.open(place, os.O_WRONLY | os.O_NONBLOCK))
            with anyio.move_on_after(0.05):
                again = await files.get("here")
        while files._threads._pool is None or files._threads._pool.free.value < _THREADS:
            await anyio.sleep(0.001)
    assert [entry.key for entry in (await files.list("")).entries] == ["here"]
    assert len(os.listdir("/proc/self/fd")) == len(handles)


async def test_a_write_that_has_begun_is_waited_for(files: FolderStore, tmp_path: Path) -> None:
    begun, may_go_on = anyio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(handle: int) -> None:
        loop.call_soon_threadsafe(begun.set)
        may_go_on.wait()
        os.fsync(handle)

    files._sync = slow
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(files.put_if_absent, "key", b"body")
        await begun.wait()
        tasks.cancel_scope.cancel()
        threading.Timer(0.1, may_go_on.set).start()
    assert (tmp_path / "store" / "key").read_bytes() == b"body"


_FULL_DISK = """
import anyio
from actorproc.errors import StoreRefused, StoreUnavailable
from actorproc.runtime.backoff import Backoff
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores.folder import FolderStore

async def main():
    files = FolderStore("disk/store")
    tag = await files.put("kept", b"kept")
    await files.put("ballast", bytes(200_000))
    for call in (files.put_if_absent("big", bytes(450_000)), files.put_if_match("kept", bytes(450_000), tag)):
        try:
            await call
        except StoreUnavailable as error:
            print(error)
    assert (await files.get("kept")).body == b"kept" and await files.get("big") is None
    await files.delete("ballast")
    await Store(files).create("big", bytes(450_000))
    import subprocess
    subprocess.run(["mount", "-o", "remount,ro", "disk"], check=True)
    assert (await files.get("kept")).body == b"kept" and len((await files.list("")).entries) == 2
    try:
        await files.put("new", b"x")
    except StoreRefused as error:
        print(error)

anyio.run(main)
"""


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """On a small file system of its own, which is then made read-only."""
    (tmp_path / "disk").mkdir()
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs unshare (Linux, with user namespaces)")
    inside = f"mount -t tmpfs -o size=600k tmpfs disk && exec {sys.executable} -c '{_FULL_DISK}'"
    done = subprocess.run([*unshare, "sh", "-c", inside], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    full, full_again, read_only = done.stdout.splitlines()
    assert "No space left on device" in full
    assert "make room on this disk" in full
    assert full_again.partition(":")[0] == full.partition(":")[0]
    assert "Read-only file system" in read_only
    assert "must be able to read and write there" in read_only


async def test_a_folder_on_another_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)

    async with Store(FolderStore(tmp_path)) as store:
        await store.create("there", b"x")
        monkeypatch.setattr(os, "link", link)
        with anyio.fail_after(5), pytest.raises(StoreRefused, match="cannot be a file beside the ones that are there"):
            await store.create("a", b"x")


@pytest.mark.parametrize("write", ["put_if_absent", "put", "delete"])
async def test_a_failed_sync_after_a_change_is_a_doubt(
    files: FolderStore, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    await files.put("there", b"1")
    monkeypatch.setattr(files, "_sync_folder", refused)
    with pytest.raises(StoreUnavailable, match="is changed, and its folder cannot be synced"):
        await (files.delete("there") if write == "delete" else getattr(files, write)("new", b"2"))
    found = [entry.key for entry in (await files.list("", "", None)).entries]
    assert found == ([] if write == "delete" else ["new", "there"])
