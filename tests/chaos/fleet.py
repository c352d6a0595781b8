"""Host and producer processes: starts, signals, watches and stops them. An unexpected exit is a fault."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio

STOP_PATIENCE = 90.0
"""Seconds in which a process that was asked to stop must have ended. A busy disk alone can hold up a flush for
forty."""

LAST_LINES = 12

_FORKS = multiprocessing.get_context("forkserver")
_CLIENTS = [f"actorproc.connectors.{name}.sink" for name in ("delta", "http", "iceberg", "kafka", "postgres", "redis")]
_FORKS.set_forkserver_preload(["tests.chaos.programs", *_CLIENTS])  # those that are installed

TICK = 0.05
"""Seconds between two looks at the processes."""


class State(Enum):
    """The state into which the last action has brought a process."""

    UP = "up"
    PAUSED = "paused"
    STOPPING = "stopping"
    KILLED = "killed"
    ENDED = "ended"


@dataclass(eq=False)
class Child:
    """A process. `slot`: the place in the fleet that it fills. `contested`: another one was started under its name."""

    name: str
    slot: int
    process: Any
    output: Path
    born: float = field(default_factory=time.monotonic)
    state: State = State.UP
    asked_at: float = 0.0
    contested: bool = False
    paused: bool = False
    """Whether the process was ever paused."""
    until_end: bool = False
    """Ends by itself when its work is done."""

    def pause(self) -> None:
        self.paused = True
        self._signal(signal.SIGSTOP, State.PAUSED)

    def resume(self) -> None:
        if self.state is State.PAUSED:
            self._signal(signal.SIGCONT, State.UP)

    def stop(self) -> None:
        """SIGTERM: drain and leave."""
        self.asked_at = time.monotonic()
        self._signal(signal.SIGTERM, State.STOPPING)

    def kill(self) -> None:
        self._signal(signal.SIGKILL, State.KILLED)

    def _signal(self, number: signal.Signals, state: State) -> None:
        if self.state is not State.ENDED:
            self.state = state
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    @property
    def text(self) -> str:
        """The output of the process."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def why_unexpected(self, code: int) -> str | None:
        """Why it should not have ended like this; None: it should."""
        if (self.state is State.KILLED and code == -signal.SIGKILL) or (self.until_end and code == 0):
            return None
        if self.contested and code == 1 and "another host named" in self.text:
            return None
        started = "processor.started" in self.text
        if code == 1 and self.paused and not started and "no answer from" in self.text:
            return None  # it was stopped in the middle of its one try to connect
        if self.asked_at:
            if code == 0 or (code == -signal.SIGTERM and not started):
                return None  # or it came before a process listened
            what = f"was asked to stop and ended with {_exit(code)}"
        else:
            what = f"ended with {_exit(code)}, unasked ({self.state.value})"
        return f"{self.name} {what}; the end of {self.output}:{_tail(self.text)}"


class Fleet:
    """All processes of a run. As a context manager it kills all remaining processes at the end of the block."""

    def __init__(self, logs: Path) -> None:
        self.children: list[Child] = []
        self.ended: list[Child] = []
        self.faults: list[str] = []
        self._logs = logs

    def start(
        self,
        slot: int,
        name: str,
        program: Callable[..., None],
        folder: Path,
        *arguments: object,
        kind: type[Child] = Child,
    ) -> Child:
        """Run `program(folder, output, *arguments)` in a process."""
        lives = sum(child.name == name for child in [*self.children, *self.ended])
        output = self._logs / f"{name}.{lives}.log"
        process = _FORKS.Process(target=program, args=(str(folder), str(output), *arguments), daemon=True)
        process.start()
        child = kind(name, slot, process, output)
        self.children.append(child)
        return child

    def reap(self) -> list[Child]:
        """Judge the processes that have ended since the last call."""
        ended = [child for child in self.children if child.process.exitcode is not None]
        for child in ended:
            self.children.remove(child)
            self.ended.append(child)
            if why := child.why_unexpected(child.process.exitcode):
                self.faults.append(why)
            child.state = State.ENDED
        now = time.monotonic()
        for child in self.children:
            if child.state is State.STOPPING and now - child.asked_at > STOP_PATIENCE:
                self.faults.append(
                    f"{child.name} did not stop within {STOP_PATIENCE:g} s; the end of "
                    f"{child.output}:{_tail(child.text)}"
                )
                child.kill()
        return ended

    def living(self, slots: Iterable[int], *states: State) -> list[Child]:
        """Processes of these slots in one of these states; without states in any."""
        wanted = set(slots)
        return [c for c in self.children if c.slot in wanted and (not states or c.state in states)]

    async def end(self, patience: float) -> None:
        """Wait until all processes have ended, and kill those that have not by then."""
        end = time.monotonic() + patience
        while self.children:
            for child in self.children:
                if child.state in (State.UP, State.STOPPING) and time.monotonic() > end:
                    self.faults.append(f"{child.name} did not end in {patience:g} s; see {child.output}")
                    child.kill()
            self.reap()
            await anyio.sleep(TICK)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self.children:
            child.kill()
        for child in self.children:
            child.process.join()


def _exit(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _tail(text: str) -> str:
    return "".join(f"\n    {line[:600]}" for line in text.splitlines()[-LAST_LINES:]) or " (empty)"
