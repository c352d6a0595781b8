"""Actors: bounded mailboxes, restarts with back-off, clean ends; and byte budgets."""

from __future__ import annotations

import anyio
import pytest

from actorproc.runtime.actor import Actor, Restartable, Restarts, keep_running
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.budget import BufferShare, BufferTotal, ByteBudget, ReadBudget
from actorproc.runtime.clock import Clock


class Worker(Restartable):
    """`work` says how it runs: it fails, waits for ever, or ends."""

    def __init__(self, work: str) -> None:
        super().__init__()
        self.work = work

    async def run(self) -> None:
        if self.work == "fail":
            raise ValueError("told to fail")
        if self.work == "wait":
            await anyio.sleep_forever()


class Manual(Clock):
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.time = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


def test_tell_gives_up_if_the_mailbox_is_full_or_closed() -> None:
    actor = Actor[int](mailbox=1)
    assert actor.tell(1)
    assert not actor.tell(2)
    actor.close()
    assert not actor.tell(3)


async def test_receive_gives_up_after_its_time_and_loses_no_message() -> None:
    actor = Actor[int](mailbox=2)
    assert await actor.receive(0) is None
    actor.tell(7)
    assert await actor.receive(0.0) == 7
    actor.close()


async def test_a_failed_actor_is_restarted_until_one_returns() -> None:
    made: list[Worker] = []
    failures: list[tuple[str, float]] = []
    clock = Manual()

    def make() -> Worker:
        made.append(Worker("fail" if len(made) < 3 else "end"))
        return made[-1]

    restarts = Restarts(Backoff(1.0, 60.0), clock)
    await keep_running(make, restarts, clock, failed=lambda error, delay: failures.append((str(error), delay)))
    assert len(made) == 4
    assert [error for error, _ in failures] == ["told to fail"] * 3
    assert [0.5 <= clock.slept[0] <= 1, 1 <= clock.slept[1] <= 2, 2 <= clock.slept[2] <= 4] == [True] * 3


async def test_an_aborted_actor_fails_with_the_given_error() -> None:
    made: list[Worker] = []
    failures: list[Exception] = []

    def make() -> Worker:
        made.append(Worker("end" if made else "wait"))
        return made[-1]

    clock = Manual()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            lambda: keep_running(
                make, Restarts(Backoff(0.5, 60.0), clock), clock, failed=lambda e, _: failures.append(e)
            )
        )
        while not made or made[0].life is None:
            await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        made[0].abort(TimeoutError("stuck"))
    assert [str(error) for error in failures] == ["stuck"]
    assert len(made) == 2


def test_a_long_run_resets_the_back_off() -> None:
    clock = Manual()
    restarts = Restarts(Backoff(1.0, 10.0), clock)
    assert [restarts.failed(ran=0.1) > bound for bound in (0.4, 0.9, 1.9)] == [True] * 3
    assert restarts.failed(ran=11.0) <= 1.0


async def test_a_budget_is_first_come_first_served_and_a_giant_is_alone() -> None:
    budget = ByteBudget(10)
    order: list[str] = []

    async def take(name: str, size: int) -> None:
        await budget.take(size)
        order.append(name)

    await budget.take(8)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take, "giant", 100)
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(take, "small", 1)
        await anyio.lowlevel.checkpoint()
        assert order == []
        budget.give_back(8)
        await anyio.lowlevel.checkpoint()
        assert order == ["giant"]
        budget.give_back(100)
    assert order == ["giant", "small"]
    assert budget.used == 1


@pytest.mark.parametrize("woken", [False, True])
async def test_a_cancelled_request_leaves_the_budget_unchanged(woken: bool) -> None:
    budget = ByteBudget(10)
    await budget.take(10)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(budget.take, 5)
        await anyio.lowlevel.checkpoint()
        if woken:
            budget.give_back(10)
        tasks.cancel_scope.cancel()
    assert budget.used == (5 if woken else 10)


def test_the_partitions_that_buffer_most_are_excessive() -> None:
    tally = BufferTotal(100)
    small, large = BufferShare(tally), BufferShare(tally)
    small.add(40)
    large.add(60)
    assert not large.excessive()
    large.add(1)
    assert (small.excessive(), large.excessive()) == (False, True)
    large.clear()
    assert (tally.used, small.excessive()) == (40, False)
    small.add(61)
    assert small.excessive()
    small.clear()
    small.clear()
    assert (tally.used, tally.holders) == (0, 0)


async def test_a_large_reservation_waits_for_half_of_the_budget() -> None:
    budget = ByteBudget(100)
    await budget.take(60)
    async with anyio.create_task_group() as tasks:
        for size in (300, 80):
            tasks.start_soon(ReadBudget(budget).reserve, size)
        await anyio.lowlevel.checkpoint()
        assert budget.used == 60
        budget.give_back(10)
        assert budget.used == 50 + 300
        budget.give_back(50)
        assert budget.used == 300
        budget.give_back(300)
        assert budget.used == 80


async def test_a_large_reservation_is_granted_once_half_is_free() -> None:
    budget = ByteBudget(100)
    await ReadBudget(budget).reserve(40)
    with anyio.fail_after(1):
        await ReadBudget(budget).reserve(90)
    assert budget.used == 130


async def test_batches_come_out_of_the_reservation_without_waiting() -> None:
    budget = ByteBudget(100)
    room, other = ReadBudget(budget), ReadBudget(budget)
    await room.reserve(1000)
    assert budget.used == 1000
    room.resize(80)
    await room.take(30)
    assert budget.used == 80
    room.resize(0)
    assert budget.used == 30
    await other.take(60)
    room.resize(20)  # larger than there is room for, but it is there
    await room.take(25)
    assert budget.used == 60 + 30 + 25
    with room.lent_out():
        assert budget.used == 60
        room.resize(7)
    assert budget.used == 60 + 30 + 25 + 7
    room.close()
    assert budget.used == 60


async def test_a_giant_request_is_granted_after_lent_bytes_are_given_back() -> None:
    budget = ByteBudget(100)
    lender = ReadBudget(budget)
    await lender.reserve(40)
    served = anyio.Event()

    async def wait() -> None:
        await budget.take(200)
        served.set()

    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(10):
            other = ReadBudget(budget)
            await other.reserve(30)
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            with lender.lent_out():
                lender.resize(0)
                other.resize(0)
            await served.wait()
