"""The folder store among several processes: killed and stopped ones, writers at once, and readers meanwhile."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import textwrap
from pathlib import Path

import anyio
import pytest

from actorproc.errors import StoreUnavailable
from actorproc.runtime.backoff import Backoff
from actorproc.storage.backend import Stored
from actorproc.storage.store import Store, StoreLimits
from actorproc.stores.folder import FolderStore
from actorproc.stores.folder_metadata import HIDDEN


async def test_drafts_of_killed_writers_are_not_seen_and_get_swept(files: FolderStore, tmp_path: Path) -> None:
    await files.put("key", b"body")
    drafts = tmp_path / "store" / HIDDEN / "drafts"
    (drafts / "old").write_bytes(b"half a bo")
    os.utime(drafts / "old", (1_000_000_000, 1_000_000_000))
    (drafts / "young").write_bytes(b"somebody is at it")
    assert [e.key for e in (await files.list("")).entries] == ["key"]
    await FolderStore(tmp_path / "store").put("other", b"body")
    assert os.listdir(drafts) == ["young"]


async def test_a_writer_killed_in_the_middle_leaves_no_object(tmp_path: Path) -> None:
    """Killed between the body's sync and its link: the moment at which most has been done and nothing is visible."""
    script = """
        import anyio, os, signal
        from actorproc.stores.folder import FolderStore

        async def main():
            files = FolderStore("store")
            await files.put("other", b"body")
            os.link = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
            await files.put_if_absent("a/key", b"zombie")

        anyio.run(main)
    """
    process = await anyio.run_process([sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, check=False)
    assert process.returncode == -9, process.stderr
    files = FolderStore(tmp_path / "store")
    (draft,) = (tmp_path / "store" / HIDDEN / "drafts").iterdir()
    assert draft.read_bytes() == b"zombie"
    assert [entry.key for entry in (await files.list("")).entries] == ["other"]
    await files.put_if_absent("a/key", b"alive")


async def test_a_lock_of_a_stopped_process_delays_writes_not_reads(files: FolderStore, tmp_path: Path) -> None:
    tag = await files.put("key", b"old")
    store = Store(files, limits=StoreLimits(timeout=0.2, patience=0.1, backoff=Backoff(0.001, 0.01)))
    locks = tmp_path / "store" / HIDDEN / "locks"
    (held,) = os.listdir(locks)
    with (locks / held).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        async with anyio.create_task_group() as tasks:
            for _ in range(40):
                tasks.start_soon(_expect_unavailable, store, tag)
            await asyncio.sleep(0)
            assert await store.get("key") == Stored(b"old", tag, 3)
    await store.swap("key", b"new", tag)
    assert os.listdir(tmp_path / "store" / HIDDEN / "drafts") == []


async def test_a_forked_child_does_not_prolong_a_lock(files: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    inherited = []

    def flock(handle: int, operation: int) -> None:
        inherited.append(os.dup(handle))  # fork duplicates all handles
        os_flock(handle, operation)

    os_flock = fcntl.flock
    tag = await files.put("key", b"one")
    monkeypatch.setattr(fcntl, "flock", flock)
    tag = await files.put_if_match("key", b"two", tag)
    monkeypatch.undo()
    try:
        with anyio.fail_after(5):
            await files.put_if_match("key", b"three", tag)
    finally:
        for handle in inherited:
            os.close(handle)


async def _expect_unavailable(store: Store, tag: str) -> None:
    with pytest.raises(StoreUnavailable, match="no answer"):
        await store.swap("key", b"blocked", tag)


async def test_processes_that_share_a_folder_lose_no_increment(tmp_path: Path) -> None:
    script = """
        import os, sys, anyio
        from actorproc.storage.store import Conflict, Store
        from actorproc.stores.folder import FolderStore

        async def main():
            store = Store(FolderStore("store"))
            for n in range(40):
                while True:
                    try:
                        stored = await store.get("counter")
                        if stored is None:
                            await store.create("counter", b"1 %d" % os.getpid())
                        else:
                            count = int(stored.body.split()[0])
                            await store.swap("counter", b"%d %d.%d" % (count + 1, os.getpid(), n), stored.tag)
                        break
                    except Conflict:
                        continue

        anyio.run(main)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(lambda: anyio.run_process(command, cwd=tmp_path, stderr=None))
    stored = await FolderStore(tmp_path / "store").get("counter")
    assert stored is not None
    assert int(stored.body.split()[0]) == 160


async def test_a_listing_while_files_come_and_go_shows_all_that_stay(files: FolderStore) -> None:
    for n in range(0, 100, 2):
        await files.put(f"d/{n:03d}", b"stays")

    async def churn(n: int) -> None:
        for _ in range(4):
            await files.put_if_absent(f"d/{n:03d}", b"passes")
            await files.delete(f"d/{n:03d}")

    async with anyio.create_task_group() as tasks:
        for n in range(1, 100, 2):
            tasks.start_soon(churn, n)
        for _ in range(30):
            keys = [e.key for e in (await files.list("d/")).entries]
            assert {f"d/{n:03d}" for n in range(0, 100, 2)} <= set(keys)
            assert keys == sorted(keys)


async def test_a_reader_never_sees_half_a_body(files: FolderStore) -> None:
    bodies = [bytes([n]) * 300_000 for n in range(4)]
    await files.put("key", bodies[0])
    done = anyio.Event()

    async def write() -> None:
        for n in range(60):
            await files.put("key", bodies[n % 4])
        done.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        while not done.is_set():
            stored = await files.get("key")
            assert stored is not None
            assert stored.body in bodies
