"""The thread pool for short blocking work."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from actorproc.runtime.thread_pool import NoThread, ThreadPool
from actorproc.simulation import VirtualClock, run
from actorproc.storage.store import Store
from actorproc.stores.folder import FolderStore


class Gate:
    """Work that begins, and ends when it may."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Event()
        self.ended = 0

    def work(self) -> None:
        self.begun.release()
        assert self.may_end.wait(30)
        self.ended += 1


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    gate = Gate()
    yield gate
    gate.may_end.set()


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not holds():
            await anyio.sleep(0.001)


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "actorproc"}


@pytest.mark.parametrize("abandon", [True, False])
async def test_work_in_a_thread_returns_its_result_or_raises_its_error(abandon: bool) -> None:
    threads = ThreadPool(2)
    assert await threads.run(divmod, 17, 5, abandon=abandon) == (3, 2)
    assert await threads.run(threading.get_ident, abandon=abandon) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 17, 0, abandon=abandon)


async def test_each_of_many_callers_gets_its_own_result() -> None:
    threads, wrong = ThreadPool(4), list[object]()

    async def ask(caller: int) -> None:
        for turn in range(100):
            got = await threads.run(divmod, 1000 * caller + turn, 1000, abandon=bool(turn % 2))
            if got != (caller, turn):
                wrong.append((caller, turn, got))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for caller in range(64):
                tasks.start_soon(ask, caller)
    assert not wrong


async def test_the_pool_starts_no_more_threads_than_needed_or_allowed(gate: Gate) -> None:
    before, threads = ours(), ThreadPool(3)
    await threads.run(int)
    await threads.run(int)
    assert len(ours() - before) == 1
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(threads.run, gate.work)
        await until(lambda: len(ours() - before) == 3)
        await anyio.wait_all_tasks_blocked()
        gate.may_end.set()
    assert gate.ended == 5
    assert len(ours() - before) == 3


async def test_a_caller_that_waits_for_a_thread_can_be_cancelled(gate: Gate) -> None:
    threads, done = ThreadPool(1), list[str]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.run, gate.work)
        await until(lambda: gate.begun.acquire(blocking=False))
        for abandon in (True, False):
            with anyio.move_on_after(0.01) as scope:
                await threads.run(done.append, "begun", abandon=abandon)
            assert scope.cancelled_caught
        gate.may_end.set()
    await threads.run(done.append, "after")
    assert done == ["after"]


async def test_a_cancelled_caller_waits_for_work_that_was_begun(gate: Gate) -> None:
    threads = ThreadPool(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.run, gate.work)
        await until(lambda: gate.begun.acquire(blocking=False))
        tasks.cancel_scope.cancel()
        threading.Timer(0.1, gate.may_end.set).start()
    assert gate.ended == 1


async def test_work_that_was_abandoned_keeps_its_thread_until_it_ends(gate: Gate) -> None:
    threads = ThreadPool(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(threads.run, gate.work, abandon=True))
        await until(lambda: gate.begun.acquire(blocking=False))
        tasks.cancel_scope.cancel()
    with anyio.move_on_after(0.05) as scope:
        await threads.run(int, abandon=True)
    assert scope.cancelled_caught, "there was no thread for it"
    gate.may_end.set()
    with anyio.fail_after(30):
        assert await threads.run(int, abandon=True) == 0
    assert gate.ended == 1


async def test_a_cancelled_caller_begins_nothing() -> None:
    threads, done = ThreadPool(1), list[str]()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await threads.run(done.append, "begun")
    await threads.run(int)
    assert not done


async def test_idle_threads_keep_nothing_alive_and_end_with_their_owner() -> None:
    class Body:
        def __call__(self) -> Body:
            return self

    before, threads, body, gate = ours(), ThreadPool(2), Body(), Gate()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.run, gate.work)
        assert await threads.run(body) is body
        gate.may_end.set()
    gone = weakref.ref(body)
    del body
    await until(lambda: gone() is None)
    assert len(ours() - before) == 2
    del threads
    await until(lambda: not ours() - before)


async def test_a_closed_pool_starts_new_threads() -> None:
    before, threads = ours(), ThreadPool(1)
    await threads.run(int)
    threads.close()
    await until(lambda: not ours() - before)
    assert await threads.run(divmod, 17, 5) == (3, 2)


async def test_an_error_keeps_neither_threads_nor_arguments_alive() -> None:
    class Body:
        def __call__(self) -> None:
            raise ValueError

    before, threads, body = ours(), ThreadPool(1), Body()
    gc.disable()
    try:
        for abandon in (True, False):
            with pytest.raises(ValueError):  # noqa: PT011
                await threads.run(body, abandon=abandon)
        gone = weakref.ref(body)
        del body, threads
        await until(lambda: gone() is None and not ours() - before)
    finally:
        gc.enable()


async def test_a_thread_that_cannot_be_started_raises_and_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, done = ThreadPool(2), list[str]()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(5):
            with pytest.raises(NoThread, match="can't start new thread"):
                await threads.run(done.append, "begun")
    with anyio.fail_after(30):
        await threads.run(done.append, "after")
    assert done == ["after"]


@pytest.mark.parametrize("abandon", [True, False])
async def test_work_of_a_caller_that_was_cancelled_directly_is_not_begun(gate: Gate, abandon: bool) -> None:
    """As by Ctrl-C, or `asyncio.timeout`."""
    threads, done = ThreadPool(1), list[str]()
    loop, failed = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: failed.append(context))
    first = asyncio.create_task(threads.run(gate.work))
    await until(lambda: gate.begun.acquire(blocking=False))
    second = asyncio.create_task(threads.run(done.append, "begun", abandon=abandon))
    pool = threads._pool
    assert pool is not None
    pool.free.release()  # so it waits for the thread, not for its turn
    await anyio.wait_all_tasks_blocked()
    for task in (first, second):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    gate.may_end.set()
    await threads.run(done.append, "after")
    assert (done, failed) == (["after"], [])


async def test_stop_iteration_becomes_a_runtime_error() -> None:
    with anyio.fail_after(30), pytest.raises(RuntimeError, match="StopIteration"):
        await ThreadPool(1).run(next, iter(()))


def test_two_event_loops_can_use_a_pool_in_turns() -> None:
    threads, gate, got = ThreadPool(1), Gate(), list[int]()

    async def first() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(threads.run, gate.work)
            await until(lambda: gate.begun.acquire(blocking=False))
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            other = threading.Thread(target=lambda: got.append(anyio.run(threads.run, int, "1")))
            other.start()
            other.join()
            gate.may_end.set()

    async def wait() -> None:
        got.append(await threads.run(int, "2"))

    anyio.run(first)
    assert got == [1, 2]


def test_a_hanging_thread_does_not_delay_the_end_of_the_process() -> None:
    script = """
        import threading, anyio
        from actorproc.runtime.thread_pool import ThreadPool

        async def main():
            with anyio.move_on_after(0.1):
                await threads.run(threading.Event().wait, abandon=True)

        threads = ThreadPool(1)
        anyio.run(main)
        print("over")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("over\n", "", 0)


def test_a_folder_store_works_in_virtual_time(tmp_path: Path) -> None:
    async def main() -> bytes:
        store = Store(FolderStore(tmp_path / "store", clock=VirtualClock("a")))
        await store.create("key", b"body")
        stored = await store.get("key")
        return stored.body if stored else b""

    assert run(main()) == b"body"


def test_an_event_loop_may_end_before_the_work() -> None:
    threads, gate = ThreadPool(1), Gate()

    async def give_up() -> None:
        with anyio.move_on_after(0.01):
            await threads.run(gate.work, abandon=True)

    anyio.run(give_up)
    gate.may_end.set()  # its loop is closed
    assert anyio.run(threads.run, divmod, 17, 5) == (3, 2)
    gc.collect()
