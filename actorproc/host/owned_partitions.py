"""The partitions of this host: starts, drains and cancels actors until they match the host's leases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple

import anyio
import anyio.abc

from actorproc.counts import Counts
from actorproc.errors import Fault, Fenced, HandlerError, PartitionGone, PartitionStuck, RowsLost, StaleEpoch, locate
from actorproc.group.assignment import Lease
from actorproc.handler.base import CloseReason
from actorproc.host.abandoned import Abandoned
from actorproc.host.failure_log import FailureLog
from actorproc.host.origins import Origins
from actorproc.host.partition_slot import PartitionSlot
from actorproc.partition.actor import PartitionActor
from actorproc.partition.dead_letter_limit import DeadLetterLimit
from actorproc.partition.host_context import HostContext
from actorproc.partition.statistics import Trouble
from actorproc.records import warm_up
from actorproc.runtime.actor import Restarts, keep_running
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.user_code import user_code
from actorproc.storage.names import natural

_DRAIN_WAITS_FOR = {
    "opening": "the handler's opened() has not ended, or an earlier call of process",
    "drained": "the source's read() has not ended: a thread of it may be blocked",
    "closing": "the handler's closing() has not ended",
}
"""By the state of the partition."""


class Wake(Enum):
    """Messages to the supervisor that say where to look. It decides from the state that it finds there."""

    LOOK = auto()
    """Look at the group."""
    HAND_OVER = auto()
    """Hand over the partitions that are drained, and close those that have ended."""


class RaiseEpoch(NamedTuple):
    """The checkpoint of an own partition has a higher `epoch` than its lease, because `group.json` was lost."""

    partition: str
    epoch: int


class Abandon(NamedTuple):
    """A call of the handler or the source does not end: another host can run the partition, and this one cannot."""

    partition: str
    why: str


class Vanished(NamedTuple):
    """The source says that it has no such partition any more."""

    partition: str


Message = Wake | RaiseEpoch | Abandon | Vanished


class OwnedPartitions(Mapping[str, PartitionSlot]):
    """The partitions that run here, and those that are drained and wait to be handed over, each with its slot.

    Args:
        notify: sends a message to the supervisor.
        log: bound to processor and host.
    """

    def __init__(self, context: HostContext, notify: Callable[[Message], object], log: Any) -> None:
        self._context = context
        self._settings, self._clock = context.settings, context.clock
        self._notify = notify
        self._logger = log
        self._slots: dict[str, PartitionSlot] = {}
        self._turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)  # by partition: one task at a time
        self._warm = anyio.Event()
        self._former_counts = Counts()  # of actors that have ended
        self._left_at: dict[str, str] = {}  # committed positions of partitions handed over as this host stops
        self._failures = FailureLog(context.clock, log)
        self._abandoned = Abandoned(context.threads)
        self.origins = Origins(context.host)
        self.changes = context.changes
        self.rows_lost: dict[str, str] = {}
        """Partition -> how its handler has lost rows on this host."""
        self.fenced = False
        """Other hosts may consider this one dead: nothing may run."""
        self.closing = False
        """The host is stopping: nothing is started any more. Running partitions go on until they are drained."""
        self.found_stuck = anyio.Event()
        """Set when partitions are found to be stuck, and replaced by the supervisor, which writes a heartbeat."""
        self._task_ended = anyio.Event()

    def __getitem__(self, partition: str) -> PartitionSlot:
        return self._slots[partition]

    def __contains__(self, partition: object) -> bool:
        return partition in self._slots

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def begin(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the background tasks. Partitions, too, run in `tasks`."""
        self._tasks = tasks
        tasks.start_soon(self._watch_progress)
        tasks.start_soon(self._warm_up)  # only partitions wait for it; joining the group does not

    async def _warm_up(self) -> None:
        await self._clock.run_in_thread(warm_up)
        self._warm.set()

    @property
    def released(self) -> list[str]:
        """Partitions that are drained and not handed over yet."""
        return [partition for partition, slot in self._slots.items() if slot.released]

    @property
    def ended(self) -> list[str]:
        """Partitions that have ended, and that the group does not know of yet."""
        return [partition for partition, slot in self._slots.items() if slot.ended]

    @property
    def draining(self) -> bool:
        """Whether some partitions are draining, and will be released soon."""
        return any(slot.draining and not (slot.released or slot.ended) for slot in self._slots.values())

    async def drained(self, within: float) -> None:
        """Wait until none is `draining`, for `within` seconds at most."""
        with anyio.move_on_after(within):
            while self.draining:
                self._task_ended = anyio.Event()
                await self._task_ended.wait()

    def by_name(self) -> list[PartitionSlot]:
        """All slots in the order of their partitions' names. May be called from any thread."""
        return sorted(self._slots.values(), key=lambda slot: natural(slot.partition))

    def counts(self) -> Counts:
        """Counts since the host started, including partitions that have moved away."""
        return sum((slot.counts() for slot in self._slots.values()), self._former_counts)

    def positions(self) -> dict[str, str]:
        """Partition -> committed position, of those that run here or that left as the host stopped."""
        here = {partition: slot.committed_cursor().position for partition, slot in self._slots.items()}
        return {partition: position for partition, position in {**self._left_at, **here}.items() if position}

    def failing(self) -> dict[str, str]:
        """Partition -> why it fails now."""
        return {partition: error for partition, slot in self._slots.items() if (error := slot.current_error())}

    def failed_for_good(self) -> dict[str, str]:
        """Partition -> why a run until the end gives it up."""
        return {partition: error for partition, slot in self._slots.items() if (error := slot.failed_for_good())}

    def abandoned(self) -> dict[str, Trouble]:
        """Partitions that this host abandoned because a call does not end, for as long as it lasts: their trouble."""
        return self._abandoned.troubles(self._slots)

    # Changing what runs

    def apply(self, leases: Mapping[str, Lease]) -> None:
        """Start, drain and cancel actors until they match the leases of this host."""
        for slot in list(self._slots.values()):
            lease = leases.get(slot.partition)
            if lease is None or lease.epoch != slot.epoch:
                self._drop(slot, "lost")
        for partition, lease in leases.items():
            running = self._slots.get(partition)
            if lease.next is not None or self.closing:
                if running is None:  # it can be handed over at once
                    slot = self._new_slot(partition, lease.epoch)
                    slot.draining = slot.released = True
                elif not running.ended:
                    self._begin_drain(running)
            elif running is None or running.released:  # released: the move was called off
                self._acquire(partition, lease.epoch)

    def _acquire(self, partition: str, epoch: int) -> None:
        former = self._slots.get(partition)
        slot = self._new_slot(partition, epoch)
        slot.acquired = True
        self._tasks.start_soon(self._run_partition, slot)
        if former is None or not former.acquired:
            hooks = self._context.hooks
            hooks.add("acquired", partition, epoch, reason=slot.origin)
            if self.origins.is_takeover(partition):
                hooks.add("taken_over", partition, epoch, reason=slot.origin)

    def _tell_released(self, slot: PartitionSlot, reason: str) -> None:
        if slot.acquired:
            slot.acquired = False
            position = slot.committed_cursor().position
            self._context.hooks.add("released", slot.partition, slot.epoch, reason=reason, position=position)

    def _drop(self, slot: PartitionSlot, reason: str) -> None:
        slot.scope.cancel()
        self._tell_released(slot, reason)
        del self._slots[slot.partition]
        self.changes.add(slot.partition)

    def _new_slot(self, partition: str, epoch: int) -> PartitionSlot:
        settings = self._settings
        restarts = Restarts(Backoff(settings.restart_backoff, settings.restart_backoff_max), self._clock)
        slot = self._slots[partition] = PartitionSlot(
            partition, epoch, restarts, DeadLetterLimit(settings), self._clock,
            since=self._clock.wall(), origin=self.origins.of(partition),
        )  # fmt: skip
        self.changes.add(partition)
        return slot

    def drain_all(self) -> None:
        """Let each finish its current batch and commit."""
        for slot in self._slots.values():
            self._begin_drain(slot)

    def forget(self, partitions: Iterable[str], reason: str = "handed over") -> None:
        """Drop the slots of partitions whose leases other hosts have now, or nobody."""
        for slot in [self._slots[partition] for partition in partitions if partition in self._slots]:
            self._drop(slot, reason)
            if self.closing:
                self._left_at[slot.partition] = slot.committed.position

    def fence(self) -> None:
        """Cancel all, and start none while `fenced`."""
        self.fenced = True
        self.cancel_all("fenced")

    def cancel_all(self, reason: str) -> None:
        """`reason`: why this host may not use its leases any more."""
        for slot in self._slots.values():
            slot.scope.cancel()
            self._tell_released(slot, reason)

    def revoke_all(self) -> None:
        """Cancel and forget all: this host has no lease any more."""
        for slot in list(self._slots.values()):
            self._drop(slot, "lost")

    # Running one partition

    async def _run_partition(self, slot: PartitionSlot) -> None:
        def make() -> PartitionActor:
            slot.actor = PartitionActor(slot.partition, slot.epoch, self._context, limit=slot.limit)
            return slot.actor

        try:
            with user_code("the partition"), slot.scope:
                async with self._turn(slot):
                    await self._warm.wait()
                    await keep_running(make, slot.restarts, self._clock, failed=partial(self._handle_failure, slot))
        except HandlerError:
            pass  # user code turned the cancellation of the scope into an error
        slot.ended = slot.actor is not None and slot.actor.ended
        self._former_counts += slot.drop_actor()
        self._task_ended.set()
        if self._slots.get(slot.partition) is not slot:
            return  # the lease is gone
        if slot.ended:
            self._notify(Wake.HAND_OVER)
        elif slot.draining and not self.fenced:
            slot.released = True
            self._notify(Wake.HAND_OVER)
        else:
            self._drop(slot, "fenced")
            if not self.fenced:  # the fence ended meanwhile, and the look after it still saw this slot: look again
                self._notify(Wake.LOOK)

    def _handle_failure(self, slot: PartitionSlot, error: Exception, delay: float) -> None:
        locate(error, self._context.store.url)  # an error of the source names its own place
        slot.note_failure(error)
        self.changes.add(slot.partition)
        if isinstance(error, RowsLost):
            self.rows_lost[slot.partition] = str(error)
        self._former_counts += slot.drop_actor()
        self._failures.log(slot, error, delay)
        if not isinstance(error, Fenced | PartitionStuck):  # `released` and `stuck` say these
            self._context.hooks.add_error(error, slot.partition, slot.epoch)
        if slot.draining:
            slot.scope.cancel()  # a restart would only fail again while other hosts wait
        if isinstance(error, StaleEpoch):
            self._notify(RaiseEpoch(slot.partition, error.epoch))
        if isinstance(error, PartitionGone):
            self._notify(Vanished(slot.partition))
        if isinstance(error, PartitionStuck) and self._context.threads.is_at_work(slot.partition):
            self._abandon(slot, "a call of its handler does not end")

    @asynccontextmanager
    async def _turn(self, slot: PartitionSlot) -> AsyncIterator[None]:
        """Wait until the actors of an earlier lease of the partition have ended: their handler may still run."""
        turn, limit = self._turns[slot.partition], self._settings.max_process_time
        while True:
            with anyio.move_on_after(limit):
                await turn.acquire()
                break
            why = f"an earlier call of the handler or of the source has not ended for max_process_time = {limit:g} s"
            self._logger.error(
                "partition.stuck", partition=slot.partition, epoch=slot.epoch, error=why,
                why="the partition goes on here only when that call, or this process, ends",
            )  # fmt: skip
            if slot.blocked is None:
                self._context.hooks.add("stuck", slot.partition, slot.epoch, reason=why)
            slot.block(why)
            self._abandon(slot, why)  # again and again: the group may not have been written, or had no other host
        slot.blocked = None
        try:
            yield
        finally:
            turn.release()

    def _begin_drain(self, slot: PartitionSlot) -> None:
        if not slot.draining:
            slot.draining = True
            self._tasks.start_soon(self._drain, slot)

    async def _drain(self, slot: PartitionSlot) -> None:
        """Let the actor finish within `max_handoff_time`; then cancel it."""
        limit = self._settings.max_handoff_time
        if slot.actor is None:
            slot.scope.cancel()
            return
        slot.actor.drain(CloseReason.STOPPING if self.closing else CloseReason.HANDOFF)
        if not limit or slot.actor.is_claiming:
            slot.scope.cancel()
            return
        await self._clock.sleep(limit)
        if slot.actor is None or self._slots.get(slot.partition) is not slot:
            return
        why = _DRAIN_WAITS_FOR.get(slot.actor.statistics.state)
        if why is None:
            rest = (
                "the next owner processes it again"
                if self._settings.delivery == "at-least-once"
                else "with at-most-once delivery, the rest of the batch is lost"
            )
            why = f"the handler did not finish its batch within max_handoff_time: {rest}"
        self._logger.warning(
            "partition.drain_timed_out", partition=slot.partition, epoch=slot.epoch, after=limit, why=why
        )
        slot.scope.cancel()

    async def _watch_progress(self) -> None:
        """Abort actors whose handler makes no progress, or whose source is silent.

        Progress is seen up to one pause late, and so is its end: stuck partitions are found two pauses late at most.
        """
        settings = self._settings
        most, silence = settings.max_process_time, settings.max_read_time
        while True:
            await self._clock.sleep(min(settings.lease_renew_interval, most, silence) / 4)
            now = self._clock.monotonic()
            for slot in list(self._slots.values()):
                actor = slot.actor
                if actor is None:
                    continue
                if slot.handling.lasts(actor.progress, most, now):
                    why = f"the handler made no progress for max_process_time = {most:g} s"
                    self._abort(slot, actor, why, most)
                elif slot.reading.lasts(actor.read_progress, silence, now) and not actor.read_anew():
                    why = f"read() of the source has yielded nothing for max_read_time = {silence:g} s"
                    self._abort(slot, actor, why, silence, "infrastructure")

    def _abort(
        self, slot: PartitionSlot, actor: PartitionActor, why: str, lasted: float, fault: Fault = "user"
    ) -> None:
        """Cancel the actor. If that does not end the call, as in a thread, another host can run the partition."""
        error = PartitionStuck(why, fault)
        slot.note_stuck(error, lasted)
        self.found_stuck.set()
        self._context.hooks.add("stuck", slot.partition, slot.epoch, error=error, fault=fault, reason=why)
        self._logger.error(
            "partition.stuck", partition=slot.partition, epoch=slot.epoch, fault=fault, error=slot.error,
            why="it is cancelled; code that swallows its cancellation ends only with the process", stack=actor.stack(),
        )  # fmt: skip
        lasts = actor.aborted is not None or self._context.threads.is_at_work(slot.partition)
        actor.abort(error)
        if lasts:
            self._abandon(slot, why)

    def _abandon(self, slot: PartitionSlot, why: str) -> None:
        self._abandoned.note(slot)
        self._notify(Abandon(slot.partition, why))
