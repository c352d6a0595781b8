"""`serve --workers N` and `--spark`: processes, started again when they die, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

import anyio
import anyio.abc

from actorproc.cli.exit_codes import FAILED, INTERRUPTED, NOT_STARTED, WRONG_USE
from actorproc.cli.worker_totals import REPORT_PIPE, Totals
from actorproc.runtime.actor import Restarts
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger
from actorproc.runtime.signals import SAME_SIGNAL_TIME

PARENT_PIPE = "ACTORPROC_PARENT_PIPE"
"""Environment variable: number of the descriptor that tells a worker when its parent is gone."""

ABORT_TIME = 5.0
"""Seconds that workers have after the second signal."""

GRACE = 3.0
"""Seconds that a host has after the second signal, less than `ABORT_TIME`: whatever its handler does then, it ends."""

_DID_NOTHING = (WRONG_USE, INTERRUPTED, -signal.SIGTERM, -signal.SIGINT)
"""Exit codes of a worker that was refused, or heard a signal before it listened for one."""

_BACKOFF = Backoff(0.5, 30.0)

logger = get_logger(__name__)


class Workers:
    """Runs command lines as processes until all are done or a signal comes.

    The workers hold the read end of a pipe whose write end only this process has. However it ends, killed included,
    the pipe closes and they stop: see `stop_with_parent`.

    Args:
        commands: by name. A host that is started again keeps its name, so it gets its leases back at once.
        until_end: a worker that ends well is done; else it is started again.
        done: the exit code of one that is.
        totals: sums up what they did.
    """

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        *,
        until_end: bool,
        done: int = 0,
        totals: Totals | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._totals = totals
        self._commands = commands
        self._until_end = until_end
        self._well = done if until_end else 0
        self._clock = clock
        self._processes: dict[str, anyio.abc.Process] = {}
        self._stopping = anyio.Event()
        self._signal = signal.SIGTERM
        self._exit_code = 0

    @property
    def stopped(self) -> bool:
        """Whether a signal came, or one of them made the others stop."""
        return self._stopping.is_set()

    async def run(self) -> int:
        """The exit code: 0 if all workers ended well."""
        alive, self._write_end = os.pipe()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._obey_signals, tasks.cancel_scope)
                async with anyio.create_task_group() as keepers:
                    for host in self._commands:
                        keepers.start_soon(self._keep, host, alive)
                tasks.cancel_scope.cancel()
        finally:
            os.close(alive)
            os.close(self._write_end)
        return self._exit_code

    async def _keep(self, host: str, alive: int) -> None:
        """Run one worker, again and again if need be."""
        restarts, first = Restarts(_BACKOFF, self._clock), True
        while not self._stopping.is_set():
            born = self._clock.monotonic()
            try:
                code = await self._run_once(host, alive)
                cause = _exit(code)
            except OSError as error:  # no memory or no process is left: no reason to end those that run
                code, cause = NOT_STARTED, str(error)
            if self._stopping.is_set():
                # A signal that arrives before the worker listens for it ends it at once: nothing was begun.
                early = code in (-signal.SIGTERM, -signal.SIGINT, INTERRUPTED) and not self._until_end
                self._note(0 if early or code == self._well else code or FAILED)
                return
            if code == self._well and self._until_end:
                return
            if code == WRONG_USE and first:  # later it is no reason to stop those that run
                logger.error("worker.wrong_use", host=host, why="its own message is above; all workers stop")
                self._note(code)
                self.stop(signal.SIGTERM)
                return
            if code in (0, FAILED, WRONG_USE) and self._until_end:
                ended = "exit code 0 before the end: does the handler end the process?"
                why = "its own message is above" if code else ended
                logger.error("worker.gave_up", host=host, why=f"{why}; it is not started again until the end")
                self._note(FAILED)
                return
            first = False
            delay = restarts.failed(self._clock.monotonic() - born)
            logger.error("worker.died", host=host, exit=cause, again_in=round(delay, 3))
            with anyio.move_on_after(delay):
                await self._stopping.wait()
        if self._until_end:
            self._note(FAILED)  # it died, and was not started again

    async def _run_once(self, host: str, alive: int) -> int:
        reports, code = self._totals and self._totals.pipe, None
        async with await anyio.open_process(
            self._commands[host],
            stdin=subprocess.DEVNULL,
            stdout=None,
            stderr=None,
            env={**os.environ, PARENT_PIPE: str(alive), **({REPORT_PIPE: str(reports)} if reports else {})},
            pass_fds=[alive, *([reports] if reports else [])],
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on: once
        ) as process:
            self._processes[host] = process
            if self._stopping.is_set():  # while it was started
                _signal(process, self._signal)
            logger.info("worker.started", host=host, pid=process.pid)
            try:
                code = await process.wait()
                return code
            finally:
                del self._processes[host]
                if self._totals is not None:
                    self._totals.ended(host, None if code in _DID_NOTHING else _cause(code))

    def stop(self, number: signal.Signals) -> None:
        """Pass a signal on to all workers; none is started again."""
        self._signal = number
        self._stopping.set()
        for process in self._processes.values():
            _signal(process, number)

    async def _obey_signals(self, scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            first: float | None = None
            async for number in signals:
                now = self._clock.monotonic()
                if first is not None and now - first < SAME_SIGNAL_TIME:
                    continue
                logger.info("workers.stopping", signal=number.name, workers=len(self._processes))
                self.stop(number)
                if first is None:
                    first = now
                else:
                    self._note(1)
                    await self._clock.sleep(ABORT_TIME)
                    scope.cancel()  # which kills what is left

    def _note(self, code: int) -> None:
        """Wrong use outweighs failure outweighs success."""
        self._exit_code = max(self._exit_code, 1 if code not in (0, WRONG_USE) else code)


def _signal(process: anyio.abc.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended, and its keeper does not know yet
        process.send_signal(number)


def _cause(code: int | None) -> str:
    """Why a process ended; None: it is killed, as the second signal came."""
    return "killed" if code is None else f"exit code {code}" if code >= 0 else str(_exit(code))


def _exit(code: int) -> str | int:
    return signal.Signals(-code).name if code < 0 else code


def command_line(arguments: Sequence[str]) -> list[str]:
    """This program with other arguments."""
    return [sys.executable, "-m", "actorproc", *arguments]


def end_soon() -> None:
    """End this process `GRACE` seconds from now: the second signal came."""
    deadline(GRACE, "second").start()


def deadline(seconds: float, which: str) -> threading.Timer:
    """A timer that ends this process with exit code 1, `seconds` after its `start`.

    A handler may swallow its cancellation, or block the event loop. `which`: the signal, for the message.
    """

    def end() -> None:
        sys.stderr.write(f"error: aborted: something still ran {seconds:g} s after the {which} signal\n")
        sys.stderr.flush()
        os._exit(FAILED)

    timer = threading.Timer(seconds, end)
    timer.name, timer.daemon = "actorproc-end", True
    return timer


def stop_with_parent(patience: float) -> bool:
    """In a worker: when the parent dies, drain as on SIGTERM; end at once if that takes longer than `patience` seconds.

    A thread, for an event loop that hangs must not keep the process alive.

    Returns:
        Whether this is a worker.
    """
    descriptor = os.environ.pop(PARENT_PIPE, None)
    if descriptor is None:
        return False

    def watch(pipe: int) -> None:
        os.read(pipe, 1)  # nobody writes: it returns when the last write end closes
        logger.warning("worker.orphaned", why="the process that started it is gone")
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(patience)
        os._exit(1)

    threading.Thread(target=watch, args=(int(descriptor),), name="actorproc-parent", daemon=True).start()
    return True
