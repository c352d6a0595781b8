"""VirtualLoop: time, order of callbacks, hosts; with asyncio and anyio on top."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable, Coroutine

import anyio
import pytest

from actorproc.simulation.loop import (
    START,
    Deadlock,
    Host,
    SimulationError,
    call_outside,
    current_host,
    current_loop,
    run,
    start_outside,
)

Trace = list[tuple[str, float]]


def ticker(trace: Trace, name: str, times: int, every: float = 1.0) -> Callable[[], Coroutine[None, None, None]]:
    async def tick() -> None:
        for _ in range(times):
            await anyio.sleep(every)
            trace.append((name, current_loop().now))

    return tick


def test_an_hour_takes_no_real_time() -> None:
    async def main() -> float:
        await anyio.sleep(3600)
        await asyncio.sleep(1800)
        return current_loop().now

    assert run(main()) == START + 5400


def test_timers_fire_in_the_order_of_their_time() -> None:
    async def main() -> list[int]:
        seen: list[int] = []
        loop = asyncio.get_running_loop()
        for delay in (3, 1, 2):
            loop.call_later(delay, seen.append, delay)
        loop.call_later(1.5, seen.append, 99).cancel()
        await anyio.sleep(4)
        return seen

    assert run(main()) == [1, 2, 3]


def order_of_ten(seed: int) -> list[int]:
    async def main() -> list[int]:
        seen: list[int] = []

        async def note(number: int) -> None:
            seen.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(note, number)
        return seen

    return run(main(), seed=seed)


def test_the_seed_decides_the_order_of_ready_callbacks() -> None:
    orders = [order_of_ten(seed) for seed in range(20)]
    assert orders == [order_of_ten(seed) for seed in range(20)]
    assert len({tuple(order) for order in orders}) > 15
    assert all(sorted(order) == list(range(10)) for order in orders)


BUSY_PROGRAM = """
import anyio
from random import Random
from actorproc.simulation.loop import current_loop, run

async def main():
    loop, random = current_loop(), Random(7)
    hosts = [loop.host(name, rate=1 + random.uniform(-.02, .02), offset=random.uniform(0, 300)) for name in "abc"]
    async def work():
        with anyio.move_on_after(random.uniform(1, 20)):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(anyio.sleep, random.uniform(0.1, 30))
                await anyio.sleep(random.uniform(1, 10))
                if random.random() < .5:
                    raise ValueError("one of the crowd")
    async def keep_working():
        while True:
            try:
                await work()
            except* ValueError:
                pass
    for host in hosts:
        host.start(keep_working())
    await anyio.sleep(500)
    hosts[0].pause()
    await anyio.sleep(60)
    hosts[0].resume()
    hosts[1].crash()
    await anyio.sleep(500)
    return loop.fingerprint

for seed in range(3):
    print(run(main(), seed=seed))
"""


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_in_another_process() -> None:
    def fingerprints(hash_seed: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(BUSY_PROGRAM)],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.split()

    first = fingerprints("1")
    assert len(set(first)) == 3
    assert fingerprints("2") == first


def test_a_deadlock_names_the_waiting_tasks() -> None:
    async def never() -> None:
        await anyio.Event().wait()

    async def main() -> None:
        current_loop().host("east").start(never(), name="stuck-task")
        await never()

    with pytest.raises(Deadlock, match=r"no timer is set at 1000.000 s") as caught:
        run(main())
    assert re.search(r"stuck-task on Host\('east', running\) waits in \S+test_loop.py:\d+ \S+never", str(caught.value))


def test_an_endless_loop_at_one_instant_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorproc.simulation.loop.STANDSTILL", 1_000)

    async def main() -> None:
        while True:
            await anyio.lowlevel.checkpoint()

    with pytest.raises(Deadlock, match="time stood still"):
        run(main())


def test_an_uncaught_error_fails_the_run() -> None:
    async def fails() -> None:
        raise ValueError("unheard")

    async def main() -> None:
        current_loop().host("a").start(fails())
        await anyio.sleep(1)

    with pytest.raises(ExceptionGroup) as caught:
        run(main())
    assert [str(error) for error in caught.value.exceptions] == ["unheard"]


def test_a_task_that_ignores_its_cancellation_is_reported() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await anyio.sleep(100)
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        current_loop().host("a").start(stubborn(), name="stubborn")
        await anyio.sleep(1)

    with pytest.raises(SimulationError, match=r"(?s)go on although they were cancelled.*stubborn"):
        run(main())


def test_threads_and_sockets_are_refused() -> None:
    async def thread() -> None:
        await asyncio.to_thread(print)

    async def socket() -> None:
        await asyncio.open_connection("127.0.0.1", 9)

    with pytest.raises(SimulationError, match=r"clock\.run_in_thread"):
        run(thread())
    with pytest.raises(SimulationError, match="no sockets"):
        run(socket())


# Hosts


def test_tasks_inherit_the_host_of_their_parent() -> None:
    async def main() -> list[str | None]:
        names: list[str | None] = []

        async def note() -> None:
            host = current_host()
            names.append(host.name if host else None)

        async def parent() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(note)
            await asyncio.create_task(note())
            await start_outside(note())

        await current_loop().host("east").start(parent())
        await note()
        return names

    assert run(main()) == ["east", "east", None, None]


@pytest.mark.parametrize("strike", [Host.pause, Host.crash])
def test_call_outside_runs_after_its_host_paused_or_crashed(
    strike: Callable[[Host], None],
) -> None:
    async def main() -> list[tuple[float, Host | None]]:
        host, called = current_loop().host("east", rate=2.0), list[tuple[float, Host | None]]()

        async def ask() -> None:
            call_outside(10, lambda: called.append((current_loop().now - START, current_host())))
            strike(host)

        host.start(ask())
        await anyio.sleep(20)
        return called

    assert run(main()) == [(10, None)]


def test_a_paused_host_does_nothing_while_its_clock_continues() -> None:
    async def main() -> tuple[Trace, float]:
        trace: Trace = []
        east, west = (current_loop().host(name) for name in ("east", "west"))
        east.start(ticker(trace, "east", 5)())
        west.start(ticker(trace, "west", 5)())
        await anyio.sleep(2.5)
        east.pause()
        before = east.time()
        await anyio.sleep(10)
        passed = east.time() - before
        east.resume()
        await anyio.sleep(10)
        return trace, passed

    trace, passed = run(main())
    assert passed == 10
    assert [at - START for name, at in trace if name == "west"] == [1, 2, 3, 4, 5]
    assert [at - START for name, at in trace if name == "east"] == [1, 2, 12.5, 13.5, 14.5]


def test_a_deadline_that_expired_during_a_pause_fires_on_resume() -> None:
    async def main() -> float:
        async def limited() -> float:
            with anyio.move_on_after(5):
                await anyio.sleep_forever()
            return current_loop().now

        host = current_loop().host("a")
        task = host.start(limited())
        await anyio.sleep(1)
        host.pause()
        await anyio.sleep(100)
        host.resume()
        return await task

    assert run(main()) == START + 101


def test_a_crashed_host_never_runs_again_and_leaves_no_warning() -> None:
    seen: list[str] = []

    async def main() -> None:
        async def program() -> None:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(anyio.sleep_forever)
                    await anyio.sleep(10)
                    seen.append("past the crash")
            finally:
                seen.append("finally" if current_loop().ending else "finally, though dead")

        host = current_loop().host("a")
        task = host.start(program())
        await anyio.sleep(1)
        host.crash()
        assert not host.alive
        del task
        gc.collect()
        await anyio.sleep(100)
        assert seen == []

    run(main())
    assert seen == ["finally"]  # only when all was over, so that nothing stays behind half done


def test_a_ready_task_of_a_crashed_host_ends() -> None:
    async def main() -> weakref.ref[asyncio.Task[None]]:
        event = anyio.Event()
        host = current_loop().host("a")
        task = host.start(event.wait())
        await anyio.sleep(1)
        event.set()
        host.crash()
        await anyio.sleep(1)
        assert not task.done()
        return weakref.ref(task)

    task = run(main())()
    assert task is None or task.done()


def test_pause_and_resume_are_refused_in_the_wrong_state() -> None:
    async def main() -> None:
        host = current_loop().host("a")
        with pytest.raises(SimulationError, match="is running"):
            host.resume()
        host.crash()
        with pytest.raises(SimulationError, match="is crashed"):
            host.pause()

    run(main())


def test_a_paused_host_can_crash() -> None:
    async def main() -> Trace:
        trace: Trace = []
        host = current_loop().host("a")
        host.start(ticker(trace, "a", 9)())
        await anyio.sleep(1.5)
        host.pause()
        await anyio.sleep(5)
        host.crash()
        await anyio.sleep(5)
        return trace

    assert len(run(main())) == 1


@pytest.mark.parametrize("rate", [0.98, 1.0, 1.02])
def test_sleeps_and_deadlines_use_the_hosts_clock(rate: float) -> None:
    async def main() -> None:
        host = current_loop().host("a", rate=rate, offset=12345.678)

        async def program() -> tuple[float, float]:
            assert anyio.current_time() == pytest.approx(12345.678 + rate * START)
            before = anyio.current_time()
            await anyio.sleep(100)
            with anyio.move_on_after(50):
                await anyio.sleep_forever()
            async with asyncio.timeout(1000):
                await asyncio.sleep(50)
            return current_loop().now, anyio.current_time() - before

        world, own = await host.start(program())
        assert own == pytest.approx(200)
        assert world - START == pytest.approx(200 / rate)

    run(main())


def test_no_timer_is_early_by_the_clock_of_its_host() -> None:
    async def main() -> None:
        async def program(host: Host) -> None:
            for exponent in range(-9, 6):
                due = anyio.current_time() + 10**exponent / 3
                await anyio.sleep_until(due)
                assert host.time() >= due

        for rate in (0.98, 0.99123, 1.0, 1.01987):
            host = current_loop().host("a", rate=rate, offset=rate * 1e5 / 3)
            await host.start(program(host))

    run(main())


# anyio's parts


def test_task_groups_streams_events_and_scopes_work_across_hosts() -> None:
    async def main() -> list[int]:
        send, receive = anyio.create_memory_object_stream[int](2)
        got: list[int] = []
        full = anyio.Event()

        async def produce() -> None:
            async with send:
                for number in range(20):
                    await send.send(number)
                    await anyio.sleep(0.1)

        async def consume() -> None:
            async with receive:
                got.extend([number async for number in receive])
            full.set()

        east, west = (current_loop().host(name, rate=rate) for name, rate in (("east", 0.98), ("west", 1.02)))
        east.start(produce())
        west.start(consume())
        with anyio.fail_after(10):
            await full.wait()
        return got

    assert run(main(), seed=3) == list(range(20))


def test_a_cancelled_group_runs_its_cleanup_in_virtual_time() -> None:
    async def main() -> tuple[list[str], float]:
        cleaned: list[str] = []

        async def worker(name: str) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(5)
                cleaned.append(name)

        with anyio.move_on_after(10):
            async with anyio.create_task_group() as tasks:
                for name in "abc":
                    tasks.start_soon(worker, name)
        return sorted(cleaned), current_loop().now

    assert run(main(), seed=1) == (["a", "b", "c"], START + 15)


def test_outside_of_a_virtual_loop_there_is_none() -> None:
    with pytest.raises(SimulationError, match=r"actorproc\.simulation\.run"):
        current_loop()
