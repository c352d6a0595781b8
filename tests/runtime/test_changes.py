"""A task that waits for changes wakes at once, and learns all names."""

from __future__ import annotations

import anyio

from actorproc.runtime.changes import Changes
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run


def test_a_change_wakes_the_task_that_waits() -> None:
    async def main() -> None:
        clock, changes = VirtualClock("a"), Changes()
        began = clock.monotonic()

        async def change() -> None:
            await clock.sleep(3)
            for name in ("0", "1", "0"):
                changes.add(name)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(change)
            await changes.wait(60)
            assert clock.monotonic() - began == 3
            assert changes.take() == {"0", "1"}

    run(main())


def test_a_change_before_the_wait_ends_it_at_once() -> None:
    async def main() -> None:
        clock, changes = VirtualClock("a"), Changes()
        began = clock.monotonic()
        changes.add("0")
        await changes.wait(60)
        assert clock.monotonic() == began
        assert changes.take() == {"0"}
        await changes.wait(7)
        assert clock.monotonic() - began == 7
        assert changes.take() == set()

    run(main())


def test_a_change_after_a_wait_that_timed_out_ends_the_next_one() -> None:
    async def main() -> None:
        clock, changes = VirtualClock("a"), Changes()
        began = clock.monotonic()
        await changes.wait(2)
        changes.add("0")
        await changes.wait(60)
        assert clock.monotonic() - began == 2

    run(main())
