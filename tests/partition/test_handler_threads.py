"""Threads for plain handlers: bounded per host, one at a time for a partition, none forgotten."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from actorproc.partition.handler_threads import HandlerThreads
from actorproc.runtime.clock import Clock


async def until(condition: threading.Event) -> None:
    with anyio.fail_after(60):
        while not condition.is_set():
            await anyio.sleep(0.001)


async def test_an_abandoned_thread_keeps_its_slot_and_partition_until_it_ends() -> None:
    threads = HandlerThreads(1, Clock())
    inside, go_on, done = threading.Event(), threading.Event(), list[str]()

    def stuck() -> None:
        inside.set()
        go_on.wait(10)
        done.append("stuck")

    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(until, inside)

            async def give_up() -> None:
                await until(inside)
                scope.cancel()

            tasks.start_soon(give_up)
            await threads.run("0", lambda: None, stuck)
        assert scope.cancelled_caught
        begun = list[str]()
        for partition in "01":
            tasks.start_soon(
                threads.run, partition, lambda partition=partition: begun.append(partition), done.append, partition
            )
        await anyio.wait_all_tasks_blocked()
        assert begun == []
        with pytest.raises(TimeoutError), anyio.fail_after(0.01):
            await threads.ended("0")
        go_on.set()
    assert done[0] == "stuck"
    assert sorted(done[1:]) == sorted(begun) == ["0", "1"]
    await threads.ended("0")


async def test_giving_up_the_wait_for_a_slot_leaves_nothing_behind() -> None:
    threads = HandlerThreads(1, Clock())
    go_on, inside = threading.Event(), threading.Event()

    def work() -> None:
        inside.set()
        go_on.wait(10)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.run, "0", lambda: None, work)
        await until(inside)
        with anyio.move_on_after(0.01):
            await threads.run("1", lambda: None, pytest.fail, "it was given up")
        go_on.set()
    with anyio.fail_after(60):
        assert await threads.run("1", lambda: None, lambda: 7) == 7


class Measured(Clock):
    """One core, on which a handler computes for a `share` of its time."""

    cores = 1

    def __init__(self, share: float) -> None:
        super().__init__(1)
        self.share = share
        self.others = 0.0  # computed by the rest of the process meanwhile
        self._computed = self._left = 0.0

    def thread_times(self) -> tuple[float, float]:
        self._computed += self.share
        self._left += 1 - self.others
        return self._computed, self._left


async def begun_together(threads: HandlerThreads) -> list[str]:
    """The partitions, of two, that begin at once after three measured attempts. Checks that both begin in the end."""
    for _ in range(3):
        await threads.run("0", lambda: None, lambda: None)
    go_on, begun = threading.Event(), list[str]()
    async with anyio.create_task_group() as tasks:
        for partition in "01":
            tasks.start_soon(
                threads.run, partition, lambda partition=partition: begun.append(partition), go_on.wait, 60
            )
        await anyio.wait_all_tasks_blocked()
        together = list(begun)
        go_on.set()
    assert begun == ["0", "1"]
    return together


@pytest.mark.parametrize(("share", "together"), [(0.9, ["0"]), (0.1, ["0", "1"])])
async def test_handlers_that_compute_take_turns_and_those_that_wait_do_not(share: float, together: list[str]) -> None:
    assert await begun_together(HandlerThreads(4, Measured(share))) == together


@pytest.mark.parametrize("others", [0.8, 1.0, 1.2])
async def test_a_computing_handler_takes_turns_in_a_busy_process(
    others: float,
) -> None:
    clock = Measured(0.1)
    threads = HandlerThreads(4, clock)
    assert await begun_together(threads) == ["0", "1"]
    clock.share, clock.others = 0.2, others
    for _ in range(200):  # few of those that wait are measured
        await threads.run("0", lambda: None, lambda: None)
    assert await begun_together(threads) == ["0"]


async def test_a_thread_ends_where_anyio_sees_no_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with `sniffio` installed: anyio marks its worker threads as running in no loop."""
    get = anyio.lowlevel.RunVar.get

    def only_in_tasks(self: anyio.lowlevel.RunVar[object], *default: object) -> object:
        if asyncio.current_task() is None:
            raise anyio.NoEventLoopError
        return get(self, *default)

    threads = HandlerThreads(1, Measured(1.0))
    monkeypatch.setattr(anyio.lowlevel.RunVar, "get", only_in_tasks)
    with anyio.fail_after(30):
        for number in range(3):
            assert await threads.run("0", lambda: None, lambda number=number: number) == number


async def test_read_batches_wait_for_a_handler_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorproc.runtime.cpu.SLOT_TIME", 60)
    clock = Measured(1.0)
    threads, go_on, decoded = HandlerThreads(4, clock), threading.Event(), list[str]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.run, "0", lambda: None, go_on.wait, 60)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(partial(clock.run_in_thread, decoded.append, "file", background=True))
        await anyio.wait_all_tasks_blocked()
        assert decoded == []
        go_on.set()
    assert decoded == ["file"]


async def test_a_turn_that_does_not_come_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorproc.runtime.cpu.SLOT_TIME", 0.01)
    threads = HandlerThreads(4, Measured(1.0))
    go_on, inside = threading.Event(), threading.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.run, "0", lambda: None, go_on.wait, 60)
        await anyio.wait_all_tasks_blocked()
        await threads.run("1", lambda: None, inside.set)
        assert inside.is_set()
        assert not go_on.is_set()
        go_on.set()
