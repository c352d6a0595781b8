"""The supervisor actor, one per host: lease timers, and starting, draining and stopping partition actors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

import anyio
import anyio.abc
import structlog

from actorproc.actor import Actor, RestartPolicy, Restarts, keep_running
from actorproc.clock import Clock
from actorproc.committing import PartitionStatistics
from actorproc.errors import (
    ActorprocError,
    HandlerMisuse,
    Outranked,
    PartitionStuck,
    RowsLost,
    SourceError,
    StoreError,
    StoreRefused,
    WrittenOut,
    described,
    locate,
    outside,
    text_of,
)
from actorproc.group.group import Group, View
from actorproc.letter_limit import LetterLimit
from actorproc.logger import get_logger
from actorproc.partition import Common, PartitionActor
from actorproc.records import warm_up
from actorproc.retry import Backoff
from actorproc.running import Done, Running
from actorproc.settings import Settings
from actorproc.until_end import UntilEnd

log = get_logger(__name__)

HAND_OVER_PAUSE = 0.05
"""Seconds over which drained partitions are gathered, so that many are handed over in one write."""


SHOWN_FAILING = 50
"""Failing partitions that a heartbeat names: enough to see that something is wrong, and it stays small."""

_TOLD = 600  # characters of an error in a heartbeat

LEAVING_TIME = 5.0
"""Seconds that a stopping host takes for the group, beyond what its partitions take to drain."""


class Note(Enum):
    """What the supervisor is told: where to look, and nothing else. It decides from what it finds."""

    LOOK = auto()
    """At the group."""
    RELEASED = auto()
    """At what is drained here, and waits to be handed over."""


@dataclass(slots=True)
class SupervisorStatistics:
    """A snapshot: what this host runs and has done, and how the group looks from here."""

    host: str
    incarnation: str
    fenced: bool
    members: list[str]
    partitions: list[PartitionStatistics]
    done: Done
    """Here, in partitions that have moved on since, too."""


class Supervisor(Actor[Note]):
    """Renews, looks, and makes what runs here equal to the leases that this host holds.

    Args:
        until_end: where a run with an end is to get to.
    """

    def __init__(self, group: Group, common: Common, until_end: UntilEnd | None = None) -> None:
        super().__init__(mailbox=16)
        self._group = group
        self._common = common
        self._settings: Settings = common.settings
        self._clock: Clock = common.clock
        self.until_end = until_end or UntilEnd()
        self._running: dict[str, Running] = {}
        self._turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)  # partition -> held by who runs it
        self._partitions: Sequence[str] = ()
        self._partitions_at = float("-inf")
        self._members: list[str] = []
        self._stopping = False
        self._fenced = False
        self._fences = 0
        self._renewed = anyio.Event()
        self._warm = anyio.Event()
        self._looking: anyio.CancelScope | None = None
        self._done = Done()  # by actors that have ended
        self._told = 0  # dead letters that the log has told of
        self._log = log.bind(processor=common.processor, host=common.host)
        self._policy = RestartPolicy(Backoff(self._settings.restart_backoff, self._settings.restart_backoff_max))

    def nudge(self) -> None:
        """Look at the group now."""
        self.tell(Note.LOOK)

    def stop(self) -> None:
        """Drain every partition, hand the leases over, leave the group; `run` then returns."""
        self._stopping = True
        if self._looking is not None:
            self._looking.cancel()  # a store that hangs must not hold the drain up; what it was to see is looked at again
        self.nudge()

    def statistics(self) -> SupervisorStatistics:
        """What this host runs now, by partition."""
        own = [self._running[partition].statistics() for partition in sorted(self._running)]
        return SupervisorStatistics(
            self._common.host, self._group.incarnation, self._fenced, list(self._members), own, self._all_done()
        )

    def _all_done(self) -> Done:
        return sum((running.done() for running in self._running.values()), self._done)

    def hopeless(self, after: int) -> dict[str, str]:
        """Partitions here that need not be waited for -> why: see `Running.hopeless`."""
        found = {partition: running.hopeless(after) for partition, running in self._running.items()}
        return {partition: why for partition, why in found.items() if why is not None}

    @property
    def partitions(self) -> set[str]:
        """Partitions that run on this host now."""
        return set(self._running)

    async def run(self) -> None:
        """Join the group, run partitions, and leave when told to stop.

        Raises:
            Fenced: another host with the same name has taken over.
            StoreRefused: the container may not be written.
        """
        # So that what stores and sources log, which do not know whose they are, says it too.
        with structlog.contextvars.bound_contextvars(processor=self._common.processor, host=self._common.host):
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                await self._renew()
                tasks.start_soon(self._renew_for_ever)
                tasks.start_soon(self._fence_in_time)
                tasks.start_soon(self._watch_progress)
                tasks.start_soon(self._warm_up)  # partitions wait for it, joining the group does not
                await self._serve()
                await self._leave()
                tasks.cancel_scope.cancel()

    async def _warm_up(self) -> None:
        await self._clock.offload(warm_up)
        self._warm.set()

    # Timers

    async def _renew(self) -> None:
        self._tell_of_letters()
        await self._group.renew({"partitions": len(self._running), "failing": self._shown_failing()})
        self._renewed.set()
        self._renewed = anyio.Event()

    def _tell_of_letters(self) -> None:
        """One line for all that came since the last one: at most one in a renew interval."""
        letters = self._all_done().dead_letters
        if letters > self._told:
            errors, latest = self._common.news.take()
            self._log.warning(
                "processor.dead_letters", new=letters - self._told, since_start=letters, errors=errors, latest=latest
            )
            self._told = letters

    def _shown_failing(self) -> dict[str, str]:
        """Partitions that failed and have not got on since -> why. A few of them, cut: they ride in the heartbeat."""
        found = {
            partition: error if len(error) <= _TOLD else f"{error[:_TOLD]} ..."
            for partition, running in self._running.items()
            if (error := running.open_error)
        }
        return dict(list(found.items())[:SHOWN_FAILING])

    async def _renew_for_ever(self) -> None:
        interval = self._settings.lease_renew_interval
        while True:
            await self._clock.sleep(interval)
            interval = self._settings.lease_renew_interval
            if not await self._has_renewed():
                interval /= 4

    async def _has_renewed(self) -> bool:
        try:
            await self._renew()
        except StoreError as error:
            self._log.warning("supervisor.renew_failed", error=str(error))
            return False
        return True

    async def _fence_in_time(self) -> None:
        """Stop everything before others may take this host for dead, until the next heartbeat is written."""
        while True:
            left = self._group.valid_until() - self._clock.monotonic()
            if left > 0:
                if self._fenced:
                    self._fenced = False
                    self._log.warning("supervisor.renewed")
                    self.nudge()
                await self._clock.sleep(left)
                continue
            if not self._fenced:
                self._fenced = True
                self._fences += 1
                self._log.error(
                    "supervisor.fenced_itself",
                    partitions=len(self._running),
                    why="no heartbeat was written in time; loop.blocked tells if a handler held the event loop up",
                )
                for running in list(self._running.values()):
                    running.scope.cancel()
            await self._renewed.wait()

    async def _watch_progress(self) -> None:
        """Cancel a handler that makes no progress; its partition is started again, unless the handler swallows that."""
        most = self._settings.max_process_time
        while True:
            await self._clock.sleep(min(self._settings.lease_renew_interval, most / 4))
            now = self._clock.monotonic()
            for running in self._running.values():
                if running.stuck(most, now) and running.actor is not None:
                    error = PartitionStuck(f"the handler made no progress for max_process_time = {most:g} s")
                    running.error = described(error)
                    self._log.error("partition.stuck", partition=running.partition, epoch=running.epoch, error=running.error,
                                    why="it is cancelled; a handler that swallows that ends only with the process")  # fmt: skip
                    running.actor.abort(error)

    # Looking

    async def _serve(self) -> None:
        look_at = self._clock.monotonic()
        while not self._stopping:
            note = await self.receive(look_at - self._clock.monotonic())
            with anyio.CancelScope() as self._looking:
                if note is Note.RELEASED:
                    await self._hand_over()
                elif not self._stopping:  # it may have been while an earlier note was on its way
                    look_at = self._clock.monotonic() + await self._look()
            self._looking = None

    async def _look(self) -> float:
        """One cycle; in how many seconds the next is due."""
        fences = self._fences
        fenced = self._fenced
        try:
            view = await self._group.look(await self._known_partitions())
        except WrittenOut:
            self._log.warning("supervisor.written_out", why="the others took this host for dead; it joins again")
            for running in list(self._running.values()):
                running.scope.cancel()
            self._running.clear()
            if not self._stopping:
                self._group.rejoin()
                if not await self._has_renewed():
                    return self._clock.jitter(self._settings.lease_renew_interval / 4)
            return 0.0
        except StoreRefused:
            raise
        except (StoreError, SourceError) as error:
            self._log.warning("supervisor.look_failed", error=str(error))
            return self._clock.jitter(self._settings.lease_acquire_interval / 4)
        self._members = sorted(view.members)
        if not fenced and fences == self._fences:
            # Else it may be from before the others took this host for dead: a look follows the renewal.
            self._apply(view)
        await self._hand_over()
        soon = view.look_again_in
        return self._clock.jitter(self._settings.lease_acquire_interval) if soon is None else soon

    async def _known_partitions(self) -> Sequence[str]:
        now = self._clock.monotonic()
        if now - self._partitions_at < self._settings.partition_refresh_interval:
            return self._partitions
        try:
            self._partitions, self._partitions_at = await self._common.source.partitions(), now
        except Exception as error:  # whatever it is, what is known goes on
            if not self._partitions:
                raise SourceError(text_of(error)) from error
            self._log.warning("supervisor.partitions_failed", error=text_of(error))
        return self._partitions

    def _apply(self, view: View) -> None:
        """Start, drain and stop until what runs is what the leases say."""
        if self._fenced:
            return
        for running in list(self._running.values()):
            lease = view.mine.get(running.partition)
            if lease is None or lease.epoch != running.epoch:
                running.scope.cancel()
                self._running.pop(running.partition)
        for partition, lease in view.mine.items():
            now_running = self._running.get(partition)
            if lease.next is None and not self._stopping:
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
        limit = LetterLimit(self._settings)
        return Running(partition, epoch, anyio.CancelScope(), restarts, limit, draining=released, released=released)

    def _start(self, partition: str, epoch: int) -> None:
        running = self._running[partition] = self._new(partition, epoch)
        self._tasks.start_soon(self._run_partition, running)

    async def _run_partition(self, running: Running) -> None:
        partition = running.partition

        def make() -> PartitionActor:
            running.actor = PartitionActor(
                partition, running.epoch, self._common, limit=running.limit,
                end=self.until_end.ahead(partition), reached=self.until_end.note_reached, lost=self.until_end.note_lost,
                stopping=lambda: self._stopping,
            )  # fmt: skip
            if running.draining:
                running.actor.drain()
            return running.actor

        def failed(error: Exception, delay: float) -> None:
            locate(error, self._common.store.url)  # what the source has read says by itself where it is
            running.failed(error)
            if isinstance(error, RowsLost):
                self.until_end.note_lost(partition, str(error))
            self._let_go(running)
            blame = error.__cause__ or error  # what a handler raised, behind what we made of it
            in_handler = isinstance(blame, HandlerMisuse) and outside(blame) is not blame.__traceback__
            expected = isinstance(blame, (ActorprocError, OSError)) and not in_handler
            self._log.error("partition.failed", partition=partition, epoch=running.epoch, again_in=round(delay, 3),
                            error=running.error, exc_info=None if expected else (type(blame), blame, outside(blame)))  # fmt: skip
            if running.draining:
                running.scope.cancel()  # it would only fail again while everybody waits for it
            if isinstance(error, Outranked):
                self._tasks.start_soon(self._outrank, running, error.epoch)

        with running.scope:
            async with self._turns[partition]:  # an earlier lease's actor may still be in its handler's `closing`
                await self._warm.wait()
                await keep_running(make, running.restarts, self._clock, failed=failed)
        self._let_go(running)
        if self._running.get(partition) is not running:
            return  # the lease is gone
        if running.draining and not self._fenced:
            running.released = True
            self.tell(Note.RELEASED)
        else:
            self._running.pop(partition)
            if not self._fenced:  # any more: the look that followed the renewal still took it for running
                self.nudge()

    def _let_go(self, running: Running) -> None:
        """The actor has ended; what it did stays counted."""
        self._done += running.let_go()

    async def _outrank(self, running: Running, epoch: int) -> None:
        """If the lease is ours all the same, the group has forgotten its epochs: mend it, and start with the new one."""
        try:
            await self._group.outrank(running.partition, epoch)
        except StoreError as error:
            self._log.warning(
                "supervisor.outrank_failed", partition=running.partition, epoch=running.epoch, error=str(error)
            )
        self.nudge()

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
        running.actor.drain()
        await self._clock.sleep(deadline - self._clock.monotonic())
        if running.actor is not None and self._running.get(running.partition) is running:
            self._log.warning(
                "partition.drain_timed_out", partition=running.partition, epoch=running.epoch,
                after=self._settings.max_handoff_time,
                why="the handler did not finish its batch within max_handoff_time: the next owner processes it again",
            )  # fmt: skip
            running.scope.cancel()

    async def _hand_over(self) -> None:
        """Give the leases of drained partitions to their next owners, many in one write."""
        if not any(running.released for running in self._running.values()):
            return
        if any(running.draining and not running.released for running in self._running.values()):
            await self._clock.sleep(HAND_OVER_PAUSE)
        released = [partition for partition, running in self._running.items() if running.released]
        try:
            kept = await self._group.hand_over(released)
        except StoreError as error:
            self._log.warning("supervisor.hand_over_failed", error=str(error), partitions=len(released))
            return  # the next look tries again
        for partition in released:
            if partition not in kept:
                self._running.pop(partition, None)
        if kept and not self._fenced:
            self.nudge()  # the next look starts them again

    # Leaving

    async def _leave(self) -> None:
        """Drain everything, hand it over, and say so. Bounded: what takes too long is left to expire."""
        self._log.info("supervisor.leaving", partitions=len(self._running))
        self._group.retire()
        for running in self._running.values():
            self._begin_drain(running)
        with anyio.move_on_after(self._settings.max_handoff_time + LEAVING_TIME):
            look_at = self._clock.monotonic()
            while True:
                if self._clock.monotonic() >= look_at:
                    look_at = self._clock.monotonic() + await self._look() / 4
                if not self._running:
                    break
                if await self.receive(look_at - self._clock.monotonic()) is Note.RELEASED:
                    await self._hand_over()
        for running in list(self._running.values()):
            running.scope.cancel()
        self._tell_of_letters()
        with anyio.move_on_after(LEAVING_TIME):
            try:
                await self._group.leave()
            except StoreError as error:
                self._log.warning("supervisor.leave_failed", error=str(error), why="what is left of this host expires")
