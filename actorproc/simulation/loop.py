"""An asyncio event loop in virtual time, with a seeded order of callbacks and with hosts that pause and crash.

The program under test runs unchanged. When no callback is ready, the time jumps to the next timer. There are no threads
and no sockets: the program uses the objects that the simulation passes to it.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import inspect
import math
import struct
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from enum import Enum
from itertools import count
from random import Random
from types import FrameType
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START = 1_000.0
"""Virtual seconds of a new loop. Not 0, because no code may take 0 for never."""

STANDSTILL = 1_000_000
"""Callbacks at one instant after which the loop assumes an endless loop."""

_COLLECT_EVERY = 100_000  # callbacks between collections of cyclic garbage
_TEARDOWN_LIMIT = 3_600.0  # virtual seconds that cancelled tasks may take to end

_host: ContextVar[Host | None] = ContextVar("_host", default=None)


class SimulationError(Exception):
    """The simulated program cannot go on, or does not end."""


class Deadlock(SimulationError):
    """No callback is ready and no timer is set, so the program waits for ever."""


class _State(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    CRASHED = "crashed"


class Host:
    """A simulated machine. Its tasks, and the tasks that they start, pause and crash with it.

    Made by `VirtualLoop.host`. A crashed host stays crashed; a restart is a new `Host`, perhaps of the same name.
    """

    def __init__(self, loop: VirtualLoop, name: str, rate: float, offset: float) -> None:
        self.name = name
        self.rate = rate
        """Seconds of its clock per second of the loop: 1.02 is two percent fast."""
        self.offset = offset
        self._loop = loop
        self._state = _State.RUNNING
        self._parked: list[asyncio.Handle] = []

    @property
    def alive(self) -> bool:
        """Whether it has not crashed. A paused host is alive. No host is once the simulation ends."""
        return self._state is not _State.CRASHED and not self._loop.ending

    @property
    def running(self) -> bool:
        return self._state is _State.RUNNING

    def time(self) -> float:
        """Time of its monotonic clock, which runs also while it is paused."""
        return self.offset + self.rate * self._loop.now

    def start(self, coroutine: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Run `coroutine` on this host."""
        return self._loop.create_task(coroutine, name=name, context=_context_of(self))

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call it on this host: after the pause if it is paused, never if it has crashed."""
        self._loop.call_soon(callback, context=_context_of(self))

    def pause(self) -> None:
        """Stop it as SIGSTOP does: none of its tasks runs until `resume`. Its clock continues."""
        if self._state is not _State.RUNNING:
            raise SimulationError(f"host {self.name} is {self._state.value}: only a running host can be paused")
        self._state = _State.PAUSED

    def resume(self) -> None:
        """Continue after `pause`. Timers that expired meanwhile fire now."""
        if self._state is not _State.PAUSED:
            raise SimulationError(f"host {self.name} is {self._state.value}: only a paused host can be resumed")
        self._state = _State.RUNNING
        self._release()

    def crash(self) -> None:
        """End it as SIGKILL does: none of its code ever runs again, not even a `finally`."""
        self._state = _State.CRASHED

    def _true_time(self, when: float) -> float:
        """The loop's time at which this host's clock has reached `when`. Never too early."""
        true = (when - self.offset) / self.rate
        while self.offset + self.rate * true < when:
            true = math.nextafter(true, math.inf)
        return true

    def _release(self) -> None:
        self._loop._ready.extend(self._parked)
        self._parked.clear()

    def __repr__(self) -> str:
        return f"Host({self.name!r}, {self._state.value})"


class VirtualLoop(asyncio.BaseEventLoop):
    """The event loop. `time()` is the time of the calling host's clock, `now` that of the world.

    Args:
        seed: decides the order of callbacks that are ready together. The same seed and program give the same run.
    """

    # Internals of asyncio's loop; the same in Python 3.11 to 3.14.
    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self, seed: object = 0) -> None:
        super().__init__()
        self.seed = seed
        self.now = START
        """Seconds of the world's clock."""
        self.fingerprint = 0
        """Hash of all callbacks and their times: equal fingerprints mean equal runs."""
        self.failures: list[BaseException] = []
        """Errors that nothing caught: of callbacks, and of tasks that nothing awaited."""
        self.ending = False
        """Whether the run is over and its remaining tasks are being cancelled."""
        self._random = Random(f"{seed}/order")  # noqa: S311
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_numbers = count()
        # Strong references: tasks of a crashed host must not be finalized.
        self._tasks: dict[asyncio.Task[Any], tuple[int, Host | None]] = {}
        self._task_numbers = count()
        self._sweep_at = 1_000
        self._hosts: list[Host] = []
        self._ran = 0
        self._ran_now = 0

    def host(self, name: str, *, rate: float = 1.0, offset: float = 0.0) -> Host:
        """A new host.

        Args:
            rate: its seconds per second of the loop.
            offset: seconds its monotonic clock is ahead.
        """
        host = Host(self, name, rate, offset)
        self._hosts.append(host)
        return host

    # The loop as asyncio and anyio use it

    def time(self) -> float:
        """Monotonic time of the current host, or of the world outside of all hosts."""
        host = _host.get()
        return self.now if host is None else host.time()

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        host = _host.get()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        due = when if host is None else host._true_time(when)
        heapq.heappush(self._timers, (due, next(self._timer_numbers), timer))
        return timer

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **options)
        context = options.get("context")
        self._tasks[task] = next(self._task_numbers), _host.get() if context is None else context.get(_host)
        if len(self._tasks) > self._sweep_at:
            self._sweep()
        return task

    def run_in_executor(self, executor: object, func: object, *args: object) -> NoReturn:
        raise SimulationError(f"no threads in virtual time: run {func!r} through `clock.run_in_thread`")

    async def _refuse_socket(self, *args: object, **options: object) -> NoReturn:
        raise SimulationError("no sockets in virtual time: give the program something in memory instead")

    create_connection = create_server = create_datagram_endpoint = _refuse_socket

    def _write_to_self(self) -> None:
        """Do nothing: this loop never sleeps."""

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is skipped when it expires."""

    def _run_once(self) -> None:
        if not self._ready and not self._stopping:
            self._advance()
        for handle in self._take_ready():
            if handle.cancelled():
                continue
            host: Host | None = handle._context.get(_host)  # type: ignore[attr-defined]
            if host is not None and not host.running and not self.ending:
                host._parked.append(handle)
                continue
            self._ran_now += 1
            self.fingerprint = zlib.crc32(struct.pack("dq", self.now, self._number(handle)), self.fingerprint)
            handle._run()
        if self._ran_now > STANDSTILL:
            raise Deadlock(f"{STANDSTILL:,} callbacks ran while time stood still at {self.now:.3f} s{self._waiting()}")

    # How

    def _advance(self) -> None:
        """Move the time to the next timer, and make ready all timers of that time."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(f"nothing is ready and no timer is set at {self.now:.3f} s{self._waiting()}")
        if timers[0][0] > self.now:
            self.now = timers[0][0]
            self._ran += self._ran_now
            self._ran_now = 0
            if self._ran > _COLLECT_EVERY:
                self._ran = 0
                gc.collect()
        while timers and timers[0][0] <= self.now:
            self._ready.append(heapq.heappop(timers)[2])

    def _take_ready(self) -> list[asyncio.Handle]:
        """The ready callbacks, in an order that the seed decides."""
        batch = list(self._ready)
        self._ready.clear()
        if len(batch) > 1:
            # anyio cancels the tasks of a scope in the order of a set, by address: sort, so that only the seed decides.
            batch.sort(key=self._number)
            self._random.shuffle(batch)
        return batch

    def _number(self, handle: asyncio.Handle) -> int:
        """Number of the task that the callback steps; -1 for other callbacks."""
        owner = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
        return self._tasks[owner][0] if isinstance(owner, asyncio.Task) and owner in self._tasks else -1

    def _sweep(self) -> None:
        self._tasks = {task: known for task, known in self._tasks.items() if not task.done()}
        self._sweep_at = 2 * len(self._tasks) + 1_000

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep an error that nothing caught: it fails the run."""
        if not self.ending:
            self.failures.append(context.get("exception") or SimulationError(context["message"]))

    def _waiting(self) -> str:
        """One line for each unfinished task and the place where it waits."""
        lines = [
            f"\n  {task.get_name()}{f' on {host!r}' if host else ''} waits in {_innermost(task)}"
            for task, (_, host) in self._tasks.items()
            if not task.done()
        ]
        more = f"\n  and {len(lines) - 30} more" if len(lines) > 30 else ""
        return ":" + "".join(lines[:30]) + more

    def find_unawaited(self) -> None:
        """Find the errors of ended tasks that nothing awaited."""
        self._sweep()
        gc.collect()

    def tear_down(self) -> None:
        """Cancel all tasks, also those of crashed hosts, so that none is finalized later; then close.

        Raises:
            SimulationError: a task does not end after its cancellation.
        """
        self.ending = True
        try:
            for host in self._hosts:
                host._release()
            self.run_until_complete(self._cancel_all())
            self.run_until_complete(self.shutdown_asyncgens())
        finally:
            self.close()

    async def _cancel_all(self) -> None:
        this, deadline = asyncio.current_task(), self.now + _TEARDOWN_LIMIT
        while left := [task for task in self._tasks if not task.done() and task is not this]:
            if self.now > deadline:
                raise SimulationError(f"tasks go on although they were cancelled{self._waiting()}")
            # A task that is cancelled before its first step leaves a coroutine that was never awaited.
            begun = [task for task in left if _has_begun(task)]
            for task in begun:
                task.cancel()
            await asyncio.wait(left, timeout=_TEARDOWN_LIMIT / 10 if begun == left else 0)


def _has_begun(task: asyncio.Task[Any]) -> bool:
    return inspect.getcoroutinestate(task.get_coro()) != inspect.CORO_CREATED  # type: ignore[arg-type]


def _innermost(task: asyncio.Task[Any]) -> str:
    """File, line and name of the coroutine in which the task waits, outside asyncio and anyio if possible."""
    inner: Any = task.get_coro()
    places: list[str] = []
    while inner is not None:
        frame: FrameType | None = getattr(inner, "cr_frame", None) or getattr(inner, "ag_frame", None)
        if frame is not None and not (places and frame.f_globals["__name__"].startswith(("asyncio.", "anyio."))):
            places.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}")
        inner = getattr(inner, "cr_await", None) or getattr(inner, "ag_await", None)
    return places[-1] if places else "nothing: it has not begun"


def current_loop() -> VirtualLoop:
    """The virtual loop that runs the caller.

    Raises:
        SimulationError: it runs on another loop, or on none.
    """
    with suppress(RuntimeError):
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            return loop
    raise SimulationError("this works in virtual time only: run it by actorproc.simulation.run")


def current_host() -> Host | None:
    """The host on which the caller runs; None outside of all hosts."""
    return _host.get()


def start_outside(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run `coroutine` outside of all hosts, so that it continues when the calling host pauses or crashes."""
    return asyncio.get_running_loop().create_task(coroutine, context=_context_of(None))


def call_outside(seconds: float, callback: Callable[..., object], *args: object) -> None:
    """Call it outside of all hosts after so many seconds, even if the calling host pauses or crashes meanwhile."""
    _context_of(None).run(asyncio.get_running_loop().call_later, seconds, callback, *args)


def _context_of(host: Host | None) -> Context:
    """The caller's context, on `host`."""
    context = copy_context()
    context.run(_host.set, host)
    return context


def run(main: Coroutine[Any, Any, T], *, seed: object = 0) -> T:
    """Run `main` in virtual time, in the world outside of all hosts, and cancel the remaining tasks when it returns.

    Raises:
        Deadlock: it can never go on.
        ExceptionGroup: a task or callback failed and nobody took note.
    """
    loop = VirtualLoop(seed)
    with _collecting_by_count():
        try:
            result = loop.run_until_complete(main)
            loop.find_unawaited()
        except BaseException:
            with suppress(SimulationError):
                loop.tear_down()
            raise
        loop.tear_down()
    if loop.failures:
        raise BaseExceptionGroup("nobody caught this in the simulation", loop.failures)
    return result


@contextmanager
def _collecting_by_count() -> Iterator[None]:
    """Collect cyclic garbage of this run only, and only where the loop says so: finalizers run program code, and must
    run at the same time each time.
    """
    enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.collect()  # before `unfreeze`, so that it takes little time
        gc.unfreeze()
        if enabled:
            gc.enable()
