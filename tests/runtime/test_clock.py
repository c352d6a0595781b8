"""The system clock, its threads and its CPU slots."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.cpu import cgroup_cores

# In a process of its own, which has one thread: forking any other is not safe.
FORKS = """
import os
from actorproc.runtime.clock import SYSTEM

for _ in range(3):
    if os.fork() == 0:
        os.write(1, SYSTEM.nonce().encode() + b"\\n")
        os._exit(0)
    os.wait()
print(SYSTEM.nonce())
"""


def test_processes_forked_after_the_import_draw_different_nonces() -> None:
    nonces = subprocess.run([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    assert len(nonces) == 4
    assert len(set(nonces)) == 4, "a fork repeats its parent's random numbers"


async def test_an_application_that_blocks_all_its_threads_does_not_block_ours() -> None:
    limiter, release = anyio.to_thread.current_default_thread_limiter(), threading.Event()
    async with anyio.create_task_group() as tasks:
        for _ in range(int(limiter.total_tokens)):
            tasks.start_soon(anyio.to_thread.run_sync, release.wait, 60)
        await anyio.wait_all_tasks_blocked()
        assert limiter.available_tokens == 0
        try:
            with anyio.fail_after(30):
                assert await SYSTEM.run_in_thread(divmod, 17, 5, abandon=True) == (3, 2)
        finally:
            release.set()


class OneCore(Clock):
    cores = 1


async def test_background_work_waits_for_a_core_and_other_work_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorproc.runtime.cpu.SLOT_TIME", 60)
    clock, inside, go_on = OneCore(), threading.Event(), threading.Event()
    begun: list[str] = []

    def work() -> None:
        inside.set()
        go_on.wait(60)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(clock.run_in_thread, work, background=True))
        with anyio.fail_after(30):
            while not inside.is_set():
                await anyio.sleep(0)
        tasks.start_soon(partial(clock.run_in_thread, begun.append, "later", background=True))
        await anyio.wait_all_tasks_blocked()
        try:
            with anyio.fail_after(30):
                await clock.run_in_thread(begun.append, "at once")
            assert begun == ["at once"]
        finally:
            go_on.set()
    assert begun == ["at once", "later"]


async def test_only_large_work_runs_in_a_thread() -> None:
    here = threading.get_ident()
    assert await Clock().run_cpu_work(1000, threading.get_ident) == here
    assert await Clock().run_cpu_work(100_000, threading.get_ident) != here


async def test_background_work_starts_without_a_core_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actorproc.runtime.cpu.SLOT_TIME", 0.01)
    clock = OneCore()
    turn = await clock.acquire_cpu_slot()
    assert turn is not None
    assert await clock.run_in_thread(divmod, 17, 5, background=True) == (3, 2)
    turn.end()
    second = await clock.acquire_cpu_slot()
    assert second is not None, "what began without a turn has given one back"
    second.end()


async def test_a_cpu_slot_that_is_held_for_long_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorproc.runtime.cpu.SLOT_TIME", 0.01)
    clock = OneCore()
    held = await clock.acquire_cpu_slot()
    await anyio.sleep(0.05)
    monkeypatch.setattr("actorproc.runtime.cpu.SLOT_TIME", 60)
    with anyio.fail_after(30):
        next_one = await clock.acquire_cpu_slot()
    assert held is not None
    assert next_one is not None
    held.end()
    with anyio.move_on_after(0.01) as scope:
        await clock.acquire_cpu_slot()
    assert scope.cancelled_caught, "whose turn has ended cannot end another's"
    next_one.end()


async def test_a_cpu_slot_is_free_after_a_failure_or_cancellation() -> None:
    clock = OneCore()
    with pytest.raises(ZeroDivisionError):
        await clock.run_in_thread(divmod, 1, 0, background=True)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await clock.run_in_thread(divmod, 17, 5, background=True)
    turn = await clock.acquire_cpu_slot()
    assert turn is not None
    turn.end()


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("max 100000", 64), ("200000 100000", 2), ("350000 100000", 3), ("50000 100000", 1), ("9900000 100000", 64),
     ("?", 64),
     (None, 64)],
)  # fmt: skip
def test_a_containers_cpu_limit_bounds_the_cores(
    limit: str | None, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit is not None:
        (tmp_path / "cpu.max").write_text(limit + "\n")
    monkeypatch.setattr("actorproc.runtime.cpu._CGROUP_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(64), raising=False)
    cgroup_cores.cache_clear()
    try:
        assert Clock().cores == cores
    finally:
        cgroup_cores.cache_clear()


def test_waiting_for_a_busy_core_is_not_idle_time() -> None:
    clock, begun, enough = OneCore(), threading.Event(), threading.Event()
    tooks: list[float] = []
    walls: list[float] = []

    def work() -> None:
        (_, before), at = clock.thread_times(), time.perf_counter()
        begun.set()
        while not enough.is_set():
            pass
        tooks.append(clock.thread_times()[1] - before)
        walls.append(time.perf_counter() - at)

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    enough.set()
    thread.join()
    assert tooks[0] < walls[0] - 0.045


async def test_an_error_of_an_abandoned_thread_is_not_logged_by_asyncio(caplog: pytest.LogCaptureFixture) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        goes_on.wait(10)
        raise ValueError("nobody waits")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(SYSTEM.run_in_thread, work, abandon=True))
        await anyio.to_thread.run_sync(begun.wait)
        tasks.cancel_scope.cancel()
    goes_on.set()
    while any("run_sync" in repr(task) for task in asyncio.all_tasks()):
        await anyio.sleep(0.01)
    gc.collect()
    assert not caplog.records
