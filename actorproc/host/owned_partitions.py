"""The partitions of this host: actors started, drained and ended until what runs is what its leases say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc

from actorproc.errors import ActorprocError, HandlerError, HandlerMisuse, PartitionStuck, RowsLost, StaleEpoch, locate
from actorproc.group.assignment import Lease
from actorproc.handler.base import CloseReason
from actorproc.host.end_progress import UntilEnd
from actorproc.host.partition_slot import Done, Running
from actorproc.partition.actor import HostContext, PartitionActor
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.statistics import PartitionStatistics
from actorproc.records import warm_up
from actorproc.runtime.actor import RestartPolicy, Restarts, keep_running
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.error_text import describe_error, user_traceback
from actorproc.runtime.user_code import user_code

_UNFINISHED = {
    "drained": "the source's read() has not ended: a thread of it may be blocked",
    "closing": "the handler's closing() has not ended",
}
"""What a drain waits for, by what the partition is at."""


class OwnPartitions:
    """What runs here. Its supervisor says what the leases are; this starts, drains and ends, and tells what has become of it.

    Args:
        released: called when a partition is drained, and waits to be handed over.
        changed: called when one has ended by itself, so that the leases are worth a look.
        outrank: called with partition and epoch when its checkpoint has seen an epoch beyond that of our lease.
        log: bound to processor and host.
    """

    def __init__(
        self,
        common: HostContext,
        until_end: UntilEnd,
        *,
        released: Callable[[], object],
        changed: Callable[[], object],
        raise_epoch: Callable[[str, int], Coroutine[Any, Any, None]],
        log: Any,
    ) -> None:
        self._common = common
        self._settings = common.settings
        self._clock = common.clock
        self._until_end = until_end
        self._say_released = released
        self._say_changed = changed
        self._raise_epoch = raise_epoch
        self._log = log
        self._running: dict[str, Running] = {}
        self._turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)  # partition -> held by who runs it
        self._warm = anyio.Event()
        self._done = Done()  # by actors that have ended
        self._policy = RestartPolicy(
            Backoff(self._settings.restart_backoff, self._settings.restart_backoff_max),
            self._settings.restart_intensity,
            self._settings.restart_period,
        )
        self.fenced = False
        """Others may take this host for dead: nothing may run."""
        self.closing = False
        """The host is to stop: nothing more is started."""

    def begin(self, tasks: anyio.abc.TaskGroup) -> None:
        """From now on, in `tasks`."""
        self._tasks = tasks
        tasks.start_soon(self._watch_progress)
        tasks.start_soon(self._warm_up)  # partitions wait for it, joining the group does not

    async def _warm_up(self) -> None:
        await self._clock.run_in_thread(warm_up)
        self._warm.set()

    def __len__(self) -> int:
        return len(self._running)

    @property
    def names(self) -> set[str]:
        """Partitions that run here, or are drained and wait to be handed over."""
        return set(self._running)

    @property
    def released(self) -> list[str]:
        """Drained, and not handed over yet."""
        return [partition for partition, running in self._running.items() if running.released]

    @property
    def draining(self) -> bool:
        """Whether some will be released soon."""
        return any(running.draining and not running.released for running in self._running.values())

    def done(self) -> Done:
        """All that was done here, in partitions that have moved on since, too."""
        return sum((running.done() for running in self._running.values()), self._done)

    def statistics(self) -> list[PartitionStatistics]:
        return [self._running[partition].statistics() for partition in sorted(self._running)]

    def failing(self) -> dict[str, str]:
        """Partitions that failed and have not got on since -> why."""
        return {running.partition: error for running in self._running.values() if (error := running.open_error)}

    def hopeless(self) -> dict[str, str]:
        """Partitions here that need not be waited for -> why: see `Running.hopeless`."""
        found = {partition: running.hopeless() for partition, running in self._running.items()}
        return {partition: why for partition, why in found.items() if why is not None}

    def apply(self, leases: Mapping[str, Lease]) -> None:
        """Start, drain and stop until what runs is what the leases say."""
        for running in list(self._running.values()):
            lease = leases.get(running.partition)
            if lease is None or lease.epoch != running.epoch:
                running.scope.cancel()
                self._running.pop(running.partition)
        for partition, lease in leases.items():
            now_running = self._running.get(partition)
            if lease.next is None and not self.closing:
                if now_running is not None and now_running.released:  # the move was called off
                    self._running.pop(partition)
                    now_running = None
                if now_running is None:
                    self._start(partition, lease.epoch)
            elif now_running is None:
                self._running[partition] = self._new(partition, lease.epoch, released=True)
            else:
                self._begin_drain(now_running)

    def _new(self, partition: str, epoch: int, *, released: bool = False) -> Running:
        restarts = Restarts(self._policy, self._clock)
        limit = DeadLetterLimit(self._settings)
        return Running(partition, epoch, anyio.CancelScope(), restarts, limit, draining=released, released=released)

    def _start(self, partition: str, epoch: int) -> None:
        running = self._running[partition] = self._new(partition, epoch)
        self._tasks.start_soon(self._run_partition, running)

    async def _run_partition(self, running: Running) -> None:
        partition = running.partition

        def make() -> PartitionActor:
            running.actor = PartitionActor(
                partition, running.epoch, self._common, limit=running.limit,
                end=self._until_end.ahead(partition), reached=self._until_end.note_reached,
            )  # fmt: skip
            return running.actor

        def failed(error: Exception, delay: float) -> None:
            locate(error, self._common.store.url)  # what the source has read says by itself where it is
            running.failed(error)
            if isinstance(error, RowsLost):
                self._until_end.note_lost(partition, str(error))
            self._let_go(running)
            blame = error.__cause__ or error  # what a handler raised, behind what we made of it
            in_handler = isinstance(blame, HandlerMisuse) and user_traceback(blame) is not blame.__traceback__
            expected = isinstance(blame, (ActorprocError, OSError)) and not in_handler
            if times := running.repeats.due(running.error, self._clock.monotonic()):
                self._log.error("partition.failed", partition=partition, epoch=running.epoch, times=times, again_in=round(delay, 3),
                                error=running.error, exc_info=None if expected else (type(blame), blame, user_traceback(blame)))  # fmt: skip
            if running.draining:
                running.scope.cancel()  # it would only fail again while everybody waits for it
            if isinstance(error, StaleEpoch):
                self._tasks.start_soon(self._raise_epoch, partition, error.epoch)

        try:
            with user_code("the partition"), running.scope:
                async with self._turn(running):
                    await self._warm.wait()
                    await keep_running(make, running.restarts, self._clock, failed=failed)
        except HandlerError:
            pass  # the scope's own cancellation, which user code kept it from ending
        self._let_go(running)
        if self._running.get(partition) is not running:
            return  # the lease is gone
        if running.draining and not self.fenced:
            running.released = True
            self._say_released()
        else:
            self._running.pop(partition)
            if not self.fenced:  # no longer: the look right after the renewal still saw it as running, so look again
                self._say_changed()

    @asynccontextmanager
    async def _turn(self, running: Running) -> AsyncIterator[None]:
        """Of the actors of a partition: an earlier lease's may still be in its handler, in `closing` or for good."""
        turn, most = self._turns[running.partition], self._settings.max_process_time
        with anyio.move_on_after(most) as patience:
            await turn.acquire()
        if patience.cancelled_caught:
            running.blocked = (
                f"an earlier call of the handler or of the source has not ended for max_process_time = {most:g} s"
            )
            self._log.error("partition.stuck", partition=running.partition, epoch=running.epoch, error=running.blocked,
                            why="until it ends, or this process does, the partition does not go on here")  # fmt: skip
            await turn.acquire()
            running.blocked = None
        try:
            yield
        finally:
            turn.release()

    def _let_go(self, running: Running) -> None:
        """The actor has ended; what it did stays counted."""
        self._done += running.let_go()

    def _begin_drain(self, running: Running) -> None:
        if not running.draining:
            running.draining = True
            self._tasks.start_soon(self._drain, running)

    async def _drain(self, running: Running) -> None:
        """Let the actor finish, for a while; then end it where it is."""
        deadline = self._clock.monotonic() + self._settings.max_handoff_time
        if running.actor is None:
            running.scope.cancel()
            return
        running.actor.drain(CloseReason.STOPPING if self.closing else CloseReason.HANDOFF)
        await self._clock.sleep(deadline - self._clock.monotonic())
        if running.actor is not None and self._running.get(running.partition) is running:
            self._log.warning(
                "partition.drain_timed_out", partition=running.partition, epoch=running.epoch,
                after=self._settings.max_handoff_time,
                why=_UNFINISHED.get(running.actor.statistics.state, "the handler did not finish its batch within max_handoff_time: "
                                    + ("the next owner processes it again" if self._settings.delivery == "at-least-once" else
                                       "at most once what is left of it is lost")),
            )  # fmt: skip
            running.scope.cancel()

    def drain_all(self) -> None:
        """Let each finish what it has in hand, and commit."""
        for running in self._running.values():
            self._begin_drain(running)

    def handed_over(self, partitions: Iterable[str]) -> None:
        """These leases are others' now."""
        for partition in partitions:
            self._running.pop(partition, None)

    def fence(self) -> None:
        """End each where it is, and start none until `unfence`."""
        self.fenced = True
        self.end_all()

    def unfence(self) -> None:
        self.fenced = False

    def close(self) -> None:
        """Start none any more; what runs goes on until it is drained."""
        self.closing = True

    def end_all(self) -> None:
        """End each where it is."""
        for running in list(self._running.values()):
            running.scope.cancel()

    def revoke_all(self) -> None:
        """As `end_all`, and no lease is ours any more."""
        self.end_all()
        self._running.clear()

    async def _watch_progress(self) -> None:
        """Cancel a handler that makes no progress; its partition is started again, unless the handler swallows that."""
        most = self._settings.max_process_time
        while True:
            await self._clock.sleep(min(self._settings.lease_renew_interval, most / 4))
            now = self._clock.monotonic()
            for running in self._running.values():
                if running.stuck(most, now) and running.actor is not None:
                    error = PartitionStuck(f"the handler made no progress for max_process_time = {most:g} s")
                    running.error = describe_error(error)
                    self._log.error("partition.stuck", partition=running.partition, epoch=running.epoch, error=running.error,
                                    why="it is cancelled; a handler that swallows that ends only with the process")  # fmt: skip
                    running.actor.abort(error)
