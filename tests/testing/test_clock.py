"""The clock of a simulated host."""

from __future__ import annotations

import anyio
import pytest

from actorproc.runtime.clock import SYSTEM
from actorproc.simulation.clock import EPOCH, VirtualClock
from actorproc.simulation.loop import START, SimulationError, current_loop, run


def test_the_clock_follows_the_time_of_its_host() -> None:
    async def main() -> None:
        clock = VirtualClock("a", offset=-250.0)
        host = current_loop().host("a", rate=1.02)

        async def program() -> tuple[float, float]:
            await clock.sleep(51)
            return clock.monotonic(), clock.wall()

        monotonic, wall = await host.start(program())
        assert monotonic == pytest.approx(START * 1.02 + 51)
        assert wall == pytest.approx(EPOCH + monotonic - 250)
        assert clock.now().timestamp() == pytest.approx(EPOCH + current_loop().now - 250)
        assert current_loop().now == pytest.approx(START + 50)

    run(main())


def test_setting_the_clock_changes_wall_time_only() -> None:
    async def main() -> None:
        clock = VirtualClock("a")
        wall, monotonic = clock.wall(), clock.monotonic()
        clock.offset -= 3600
        assert clock.wall() == wall - 3600
        assert clock.monotonic() == monotonic

    run(main())


def test_random_numbers_come_from_the_seed() -> None:
    first, again, other = (VirtualClock(seed) for seed in ("7/a", "7/a", "7/b"))
    assert [first.nonce() for _ in range(3)] == [again.nonce() for _ in range(3)]
    assert first.nonce() != other.nonce()
    assert 9 <= first.jitter(10) <= 11


def test_work_for_a_thread_runs_inline_after_a_virtual_delay() -> None:
    async def main() -> None:
        clock = VirtualClock("a", delay=3.0)
        assert await clock.run_in_thread(divmod, 17, 5) == (3, 2)
        assert START < current_loop().now <= START + 3
        with pytest.raises(ZeroDivisionError):
            await clock.run_in_thread(divmod, 1, 0)

    run(main())


@pytest.mark.parametrize("abandon", [False, True])
def test_a_cancelled_caller_waits_unless_it_may_abandon_the_work(abandon: bool) -> None:
    async def main() -> None:
        done: list[int] = []
        clock = VirtualClock("a", delay=100.0)
        with anyio.move_on_after(0.001):
            await clock.run_in_thread(done.append, 1, abandon=abandon)
        assert done == ([] if abandon else [1])

    run(main())


def test_work_for_a_thread_respects_the_limiter() -> None:
    async def main() -> None:
        clock, limiter = VirtualClock("a", delay=1.0), anyio.CapacityLimiter(2)
        most = 0

        def work() -> None:
            nonlocal most
            most = max(most, limiter.borrowed_tokens)

        async def run_in_thread() -> None:
            await clock.run_in_thread(work, limiter=limiter)

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(run_in_thread)
        assert most == 2

    run(main())


async def test_the_wall_clock_needs_virtual_time() -> None:
    with pytest.raises(SimulationError, match="virtual time only"):
        VirtualClock("a").wall()
    assert SYSTEM.wall() > EPOCH
