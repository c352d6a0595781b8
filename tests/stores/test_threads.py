"""Threads that requests to a folder are handed over to."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from actorproc.stores.threads import Threads


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
async def test_work_runs_in_a_thread_and_gives_its_result_or_its_error(abandon: bool) -> None:
    threads = Threads(2)
    assert await threads.run(divmod, 17, 5, abandon=abandon) == (3, 2)
    assert await threads.run(threading.get_ident, abandon=abandon) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 17, 0, abandon=abandon)


async def test_each_of_very_many_callers_gets_what_is_its_own() -> None:
    threads, wrong = Threads(4), list[object]()

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


async def test_there_are_never_more_threads_than_allowed_nor_than_there_was_work_for(gate: Gate) -> None:
    before, threads = ours(), Threads(3)
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


async def test_who_waits_for_a_thread_can_give_up_and_the_work_is_not_begun(gate: Gate) -> None:
    threads, done = Threads(1), list[str]()
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


async def test_work_that_was_begun_is_waited_for_by_a_caller_who_is_cancelled(gate: Gate) -> None:
    threads = Threads(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.run, gate.work)
        await until(lambda: gate.begun.acquire(blocking=False))
        tasks.cancel_scope.cancel()
        threading.Timer(0.1, gate.may_end.set).start()
    assert gate.ended == 1


async def test_work_that_was_abandoned_keeps_its_thread_until_it_ends(gate: Gate) -> None:
    threads = Threads(1)
    with anyio.move_on_after(0.01) as scope:
        await threads.run(gate.work, abandon=True)
    assert scope.cancelled_caught
    with anyio.move_on_after(0.05) as scope:
        await threads.run(int, abandon=True)
    assert scope.cancelled_caught, "there was no thread for it"
    gate.may_end.set()
    with anyio.fail_after(30):
        assert await threads.run(int, abandon=True) == 0
    assert gate.ended == 1


async def test_a_caller_who_is_cancelled_already_begins_nothing() -> None:
    threads, done = Threads(1), list[str]()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await threads.run(done.append, "begun")
    await threads.run(int)
    assert not done


async def test_idle_threads_keep_nothing_alive_and_end_with_their_owner() -> None:
    class Body:
        def __call__(self) -> Body:
            return self

    before, threads, body = ours(), Threads(2), Body()
    assert await threads.run(body) is body
    gone = weakref.ref(body)
    del body
    await until(lambda: gone() is None)
    assert len(ours() - before) == 1
    del threads
    await until(lambda: not ours() - before)


def test_an_event_loop_that_ends_before_the_work_leaves_the_threads_to_the_next_one() -> None:
    threads, gate = Threads(1), Gate()

    async def give_up() -> None:
        with anyio.move_on_after(0.01):
            await threads.run(gate.work, abandon=True)

    anyio.run(give_up)
    gate.may_end.set()  # its loop is closed
    assert anyio.run(threads.run, divmod, 17, 5) == (3, 2)
    gc.collect()
