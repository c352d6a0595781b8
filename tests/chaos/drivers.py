"""The Spark half of a run: starts one driver after another, and kills it at random and at the worst moments."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

import anyio

from tests.chaos.driver import Job, drive
from tests.chaos.fleet import STOP_PATIENCE, TICK, Child, Fleet, State
from tests.chaos.place import Place
from tests.chaos.table import Table, check_table
from tests.chaos.verdict import Verdict

TARGETS = {"driver": 5, "java": 2, "python": 2}
"""Weights of the processes to kill: all processes of the driver, its Java alone, its Python alone."""

EXECUTOR = {"executor": 4}
"""The same of a cluster; the driver goes on."""

MOMENTS = {"": 3, " in a batch": 3, " after a batch": 3}
"""When -> weight. After a batch: it is in the table, and Spark has not noted that yet."""

SOON = 15.0
"""Seconds from its start in which a driver is killed at any moment; it takes some ten to begin."""

BATCHES = 6.0
"""Seconds from its first batch in which a driver is killed in or after one."""

CATCH_UP = 600.0
"""Seconds in which the last driver must read the remaining rows."""

ENOUGH = 2
"""Blows on drivers that had written something, without which a run proves little: a slow machine starts one in a
minute."""

SPARKS_OWN = (
    "Python worker failed to connect back",  # the machine was so busy that it took more than ten seconds to start
    "Task serialization failed: java.lang.IllegalStateException: Illegal size",  # a Scala collection changed meanwhile
)
"""Errors by which Spark ends a query now and then without a strike."""


class Driver(Child):
    """A driver's Python process, which starts its own Java process. Both are in one process group."""

    halved = False
    """Whether only one of the two was killed; then the other must end by itself."""

    def kill(self) -> None:
        """Kill all of it."""
        self._struck()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has no group yet
            super().kill()

    def kill_half(self, process: int) -> None:
        """Kill one of its processes alone."""
        self._struck()
        self.halved = True
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)

    def _struck(self) -> None:
        self.state, self.asked_at = State.KILLED, time.monotonic()

    def why_unexpected(self, code: int) -> str | None:
        return None if self.halved or self.failed_by_spark(code) else super().why_unexpected(code)

    def failed_by_spark(self, code: int) -> bool:
        """Whether Spark ended without a strike. Its supervisor starts it again."""
        return code == 1 and any(reason in self.text for reason in SPARKS_OWN)


class Drivers:
    """Keeps a driver running from the first committed row on. As a context manager it leaves no process behind."""

    is_calm = True

    def __init__(self, job: Job, place: Place, random: Random, say: Callable[[str], None]) -> None:
        self.done: Counter[str] = Counter()
        self._job, self._place, self._random, self._say = job, place, random, say
        self._table = Table(job.folder)
        logs = place.folder / "drivers"
        logs.mkdir()
        self._fleet = Fleet(logs)
        self._names = 0
        self._start_at = 0.0
        self._before = 0  # batches that were there when the driver was started
        self._finished = 0
        self._bites = 0
        self._first_batch: float | None = None
        self._draw()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fleet.__exit__(kind, error, trace)

    def tick(self, *, storm: bool) -> None:
        """See that there is a driver; in a storm strike it when its time has come."""
        grown, driver = self._look(), self._driver()
        if driver is None:
            if time.monotonic() >= self._start_at and not self._java_lives():
                self._start(until_end=False)
        elif driver.state is State.KILLED:
            self._see_it_end(driver)
        elif storm and self._is_time(driver, grown):
            self._strike(driver)

    @property
    def had_enough(self) -> bool:
        return self._bites >= ENOUGH

    async def finish(self) -> None:
        """Stop the driver in good order, and let a last one read the remaining rows."""
        if (driver := self._driver()) is not None and driver.state is State.UP:
            driver.stop()
        while (driver := self._driver()) is not None or self._java_lives():
            if driver is not None and driver.state is State.KILLED:
                self._see_it_end(driver)
            self._look()
            await anyio.sleep(TICK)
        began, done = time.monotonic(), False
        while not done:
            last = self._start(until_end=True)
            while self._driver() is not None:
                if time.monotonic() - began > CATCH_UP and last.state is State.UP:
                    self._fleet.faults.append(f"what was left was not read in {CATCH_UP:g} s; see {last.output}")
                    last.kill()
                self._look()
                await anyio.sleep(TICK)
            done = not last.failed_by_spark(last.process.exitcode)
        self._say(f"what was left was read in {time.monotonic() - began:.1f} s")

    def judge(self, verdict: Verdict) -> list[str]:
        """The faults of the drivers and of the table."""
        idle = (
            [] if self.had_enough else [f"{self._bites} drivers were killed that had written something, not {ENOUGH}"]
        )
        return self._fleet.faults + idle + check_table(self._table.rows(), verdict.rows)

    @property
    def line(self) -> str:
        return f"{self._names} drivers, {self._finished} batches"

    @property
    def summary(self) -> str:
        """Counts of strikes, batches and rows."""
        again = sum(len(re.findall(r"^batch \d+ is there$", child.text, re.MULTILINE)) for child in self._fleet.ended)
        troubles = ", ".join(f"{what} {times}" for what, times in sorted(self.done.items())) or "no trouble"
        return (
            f"{troubles}; {self._names} drivers, {self._finished} batches, {len(self._table.rows()):,} rows; "
            f"of the batches {self._table.drafts()} were left half written, {again} came again"
        )

    def _driver(self) -> Driver | None:
        return next((child for child in self._fleet.children if isinstance(child, Driver)), None)

    def _start(self, *, until_end: bool) -> Driver:
        self._names += 1
        name, place = f"d{self._names}", self._place
        driver = self._fleet.start(
            0, name, drive, place.folder, place.environment(), self._job, name, until_end, kind=Driver
        )
        assert isinstance(driver, Driver)
        driver.until_end = until_end
        self._before = self._table.finished()
        self._draw()
        self._say(f"start driver {name}")
        return driver

    def _look(self) -> bool:
        """Whether a batch was finished since the last look."""
        for child in self._fleet.reap():
            self._start_at = time.monotonic() + self._random.uniform(0.1, 3.0)
            self._say(f"{child.name} has ended")
        before, self._finished = self._finished, self._table.finished()
        if self._first_batch is None and self._finished > self._before:
            self._first_batch = time.monotonic()
        return self._finished > before

    def _see_it_end(self, driver: Driver) -> None:
        """End a driver after one of its processes was killed: the other process must notice."""
        if time.monotonic() - driver.asked_at > STOP_PATIENCE:
            self._fleet.faults.append(f"{driver.name} lives {STOP_PATIENCE:g} s after half of it was killed")
            driver.kill()

    def _draw(self) -> None:
        """Draw the next target and its time."""
        targets = TARGETS | (EXECUTOR if self._job.on_cluster else {})
        self._target, self._moment = (self._random.choices(list(of), list(of.values()))[0] for of in (targets, MOMENTS))
        self._after = self._random.uniform(0, BATCHES if self._moment else SOON)
        self._drawn = time.monotonic()
        self._first_batch = None

    def _is_time(self, driver: Driver, grown: bool) -> bool:
        now = time.monotonic()
        if not self._moment:
            return now - self._drawn > self._after
        if self._first_batch is None or now - self._first_batch < self._after:
            return False
        return grown if "after" in self._moment else self._table.writing(driver.name)

    def _strike(self, driver: Driver) -> None:
        java, target = self._java(driver), self._target
        if target == "executor":
            executors = self._executors()
            if not executors:
                return
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(executors), signal.SIGKILL)
        elif target == "driver" or java is None:
            target = "driver"
            driver.kill()
        else:
            driver.kill_half(java if target == "java" else driver.process.pid)
        what = f"kill {target}{self._moment}"
        self.done[what] += 1
        self._say(f"{what} ({driver.name})")
        self._bites += self._first_batch is not None
        self._before = self._finished
        self._draw()

    def _executors(self) -> list[int]:
        """Process ids of the cluster's executors: those who work in its folder."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                at_home = str((process / "cwd").readlink()).startswith(f"{self._place.folder}/")
                if at_home and b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
        return sorted(found)

    def _java(self, driver: Child) -> int | None:
        """The process id of its Java, once it has one."""
        path = self._job.java_of(driver.name)
        return int(path.read_text()) if path.exists() else None

    def _java_lives(self) -> bool:
        """Whether the Java of the driver that ended last is still there: no other may work beside it."""
        java = self._java(self._fleet.ended[-1]) if self._fleet.ended else None
        return java is not None and _lives(java)


def _lives(process: int) -> bool:
    """Whether it has not ended. (One that has, and was not reaped, has.)"""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc").exists()
