"""What is particular to the folder store: other processes, killed and stopped ones, full disks, foreign files."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from actorproc.errors import ConditionFailed, StoreRefused, StoreUnavailable, UsageError
from actorproc.retry import Backoff
from actorproc.store import Store, Stored, StoreLimits
from actorproc.stores.files import _THREADS, Files
from actorproc.stores.ground import HIDDEN


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "store")


async def test_reading_leaves_no_trace(files: Files, tmp_path: Path) -> None:
    await files.open()
    assert await files.get("key") is None
    assert (await files.list("")).entries == []
    await files.delete("key")
    with pytest.raises(ConditionFailed):
        await files.put_if_match("key", b"body", "tag")
    assert not (tmp_path / "store").exists()


async def test_an_object_is_a_plain_file_at_its_key(files: Files, tmp_path: Path) -> None:
    await files.put_if_absent("output/partition=a/1.parquet", b"body")
    assert (tmp_path / "store/output/partition=a/1.parquet").read_bytes() == b"body"
    assert os.listdir(tmp_path / "store/output/partition=a") == ["1.parquet"]
    assert os.listdir(tmp_path / "store" / HIDDEN / "drafts") == []


async def test_a_body_that_the_system_takes_in_parts_is_written_whole(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, bytes(data[:3])))
    await files.put("key", b"0123456789")
    stored = await files.get("key")
    assert stored is not None
    assert stored.body == b"0123456789"


async def test_files_made_by_other_programs_are_objects_too(files: Files, tmp_path: Path) -> None:
    (tmp_path / "store/in").mkdir(parents=True)
    (tmp_path / "store/in/data.json").write_text("{}")
    (entry,) = (await files.list("in/")).entries
    assert (entry.key, entry.size) == ("in/data.json", 2)
    assert await files.get("in/data.json") == Stored(b"{}", entry.tag, 2)
    assert await files.put_if_match("in/data.json", b"[]", entry.tag) != entry.tag


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="it needs /proc to tell what is synced")
async def test_what_is_written_or_removed_is_synced_with_its_folder_unless_it_is_fleeting(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
async def test_keys_that_cannot_be_files_are_refused(files: Files, key: str, tmp_path: Path) -> None:
    for call in (files.get(key), files.put(key, b""), files.put_if_absent(key, b""), files.delete(key)):
        with pytest.raises(UsageError, match="cannot name a file"):
            await call
    assert os.listdir(tmp_path) == []


async def test_no_listing_leads_out_of_the_folder(files: Files, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    await files.put("key", b"body")
    for prefix in ("../", "../s", "/", "./", "key/../", f"{HIDDEN}/"):
        assert (await files.list(prefix)).entries == []


async def test_a_key_below_a_file_or_above_one_is_refused_with_the_reason(files: Files) -> None:
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
        await Files(tmp_path / "file").open()


async def test_a_place_in_which_no_folder_can_be_made_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkdir(path: str) -> None:
        raise FileNotFoundError(2, "No such file or directory", path)  # as /proc says

    monkeypatch.setattr(os, "mkdir", mkdir)
    says = f"{tmp_path} takes no folders, so {tmp_path}/x cannot be made; give a place elsewhere"
    with anyio.fail_after(5), pytest.raises(StoreRefused, match=says):
        await Store(Files(tmp_path / "x")).create("key", b"body")


async def test_a_version_is_later_than_the_one_it_replaces_also_when_clocks_step_back(
    files: Files, tmp_path: Path
) -> None:
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


async def test_times_hold_a_nonce_below_the_millisecond_so_a_key_used_again_gets_another_tag(files: Files) -> None:
    """Same size, same inode, same millisecond: all that a delete and a create at once leave to tell them apart."""
    tags = [await files.put_if_absent(f"key/{n}", b"body") for n in range(40)]
    assert len({int(tag.partition("-")[0], 16) % 1_000_000 for tag in tags}) > 35


async def test_drafts_of_killed_writers_are_not_seen_and_get_swept(files: Files, tmp_path: Path) -> None:
    await files.put("key", b"body")
    drafts = tmp_path / "store" / HIDDEN / "drafts"
    (drafts / "old").write_bytes(b"half a bo")
    os.utime(drafts / "old", (1_000_000_000, 1_000_000_000))
    (drafts / "young").write_bytes(b"somebody is at it")
    assert [e.key for e in (await files.list("")).entries] == ["key"]
    await Files(tmp_path / "store").put("other", b"body")
    assert os.listdir(drafts) == ["young"]


async def test_a_writer_killed_in_the_middle_leaves_no_object(tmp_path: Path) -> None:
    """Killed between the body's sync and its link: the moment at which most has been done and nothing is visible."""
    script = """
        import os, signal
        os.link = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
        import anyio
        from actorproc.stores.files import Files
        files = Files("store")
        files._prove_links = lambda probe: None
        anyio.run(files.put_if_absent, "a/key", b"zombie")
    """
    process = await anyio.run_process([sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, check=False)
    assert process.returncode == -9, process.stderr
    files = Files(tmp_path / "store")
    assert len(os.listdir(tmp_path / "store" / HIDDEN / "drafts")) == 1
    assert (await files.list("")).entries == []
    await files.put_if_absent("a/key", b"alive")


async def test_while_a_stopped_process_holds_a_lock_others_wait_until_their_deadline_and_reads_go_on(
    files: Files, tmp_path: Path
) -> None:
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


async def test_a_lock_ends_with_its_write_though_a_child_forked_meanwhile_has_its_handle(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    inherited = []

    def flock(handle: int, operation: int) -> None:
        inherited.append(os.dup(handle))  # what fork does to all handles
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


@pytest.mark.parametrize("instead", [None, "empty", "another", "older"])
@pytest.mark.parametrize("met", ["written", "found"])
async def test_a_folder_that_is_away_is_unavailable_and_not_made_again(
    tmp_path: Path, instead: str | None, met: str
) -> None:
    """As with a mount that is gone, below which there may be a folder, from an earlier such hour too."""
    root = tmp_path / "store"
    files = Files(root)
    if instead == "older":
        await Files(root).put("first", b"")
        (root / HIDDEN / "clock").write_bytes(b"")
    for each in (Files(root), files) if met == "found" else (files,):
        await each.open()
        if met == "written" or each is not files:
            tag = await each.put("a/key", b"body")
    lane, fleeting = files.lane(), files.fleeting()
    root.rename(tmp_path / "away")
    if instead == "empty":
        root.mkdir()
    elif instead is not None:
        await Files(root).put("a/key", b"hidden later")
        if instead == "older":  # as stores were made before their clocks held anything
            (root / HIDDEN / "clock").write_bytes(b"")
    there = sorted(root.rglob("*"))
    for each in (files, lane, fleeting):
        for request in (
            each.put("a/key", b"x"), each.put_if_absent("b/new", b"x"), each.put_if_match("a/gone", b"x", tag), each.list(""),
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
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    tag = await files.put("key", b"body")
    monkeypatch.setattr("actorproc.stores.ground.open", refuse, raising=False)
    reading = Files(tmp_path / "store")
    await reading.open()
    assert await reading.get("key") == Stored(b"body", tag, 4)


async def test_who_may_not_ask_the_folder_for_the_time_may_not_write_there(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of its own what is young may seem old enough to be deleted."""

    def refuse(path: str | int, *args: object, **keywords: object) -> None:
        if str(path).endswith("/clock"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        really(path, *args, **keywords)

    await files.put("key", b"body")
    really: Any = os.utime
    monkeypatch.setattr(os, "utime", refuse)
    with pytest.raises(StoreRefused, match=r"clock: user .* must be able to read and write there"):
        await Files(tmp_path / "store").put("key", b"more")


async def test_a_folder_removed_and_made_anew_is_another_one_although_its_files_may_have_the_inodes_of_the_old(
    files: Files, tmp_path: Path
) -> None:
    await files.put("key", b"body")
    shutil.rmtree(tmp_path / "store")
    await Files(tmp_path / "store").put("key", b"new")
    with pytest.raises(StoreUnavailable, match=r"if it was removed on purpose, .* start anew what uses it"):
        await files.put("key", b"body")
    assert (tmp_path / "store/key").read_bytes() == b"new"


async def test_a_folder_that_goes_while_a_file_is_put_in_place_is_not_made_again(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


async def test_folders_go_with_the_last_object_in_them(files: Files, tmp_path: Path) -> None:
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
async def test_a_writer_whose_folder_is_removed_as_soon_as_it_is_made_makes_it_again(
    files: Files, monkeypatch: pytest.MonkeyPatch, verb: str
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
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of rounds in which the folders come and go all the time."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # what a power cut would leave is not asked here
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


async def test_requests_of_a_lane_do_not_wait_behind_those_for_which_there_is_no_thread(
    files: Files, monkeypatch: pytest.MonkeyPatch
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


async def test_who_reads_a_disk_that_hangs_gives_up_in_time_and_the_threads_are_counted_until_they_end(
    files: Files, tmp_path: Path
) -> None:
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
            with suppress(OSError):  # nobody reads it any more
                os.close(os.open(place, os.O_WRONLY | os.O_NONBLOCK))
            with anyio.move_on_after(0.05):
                again = await files.get("here")
        while files._threads._pool is None or files._threads._pool.free.value < _THREADS:
            await anyio.sleep(0.001)
    assert [entry.key for entry in (await files.list("")).entries] == ["here"]
    assert len(os.listdir("/proc/self/fd")) == len(handles)


async def test_a_write_that_has_begun_is_waited_for(files: Files, tmp_path: Path) -> None:
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


async def test_processes_that_share_a_folder_lose_no_increment(tmp_path: Path) -> None:
    script = """
        import os, sys, anyio
        from actorproc.store import Conflict, Store
        from actorproc.stores.files import Files

        async def main():
            store = Store(Files("store"))
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
    stored = await Files(tmp_path / "store").get("counter")
    assert stored is not None
    assert int(stored.body.split()[0]) == 160


async def test_a_listing_while_files_come_and_go_shows_all_that_stay(files: Files) -> None:
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


async def test_a_reader_never_sees_half_a_body(files: Files) -> None:
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


_FULL_DISK = """
import anyio
from actorproc.errors import StoreRefused, StoreUnavailable
from actorproc.retry import Backoff
from actorproc.store import Store, StoreLimits
from actorproc.stores.files import Files

async def main():
    files = Files("disk/store")
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


def test_a_full_disk_is_named_loses_nothing_and_is_gone_when_there_is_room(tmp_path: Path) -> None:
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
