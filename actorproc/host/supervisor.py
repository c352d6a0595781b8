"""The supervisor actor, one per host: its timers, what it sees of the group, and handing over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from math import inf

import anyio
import anyio.abc
import structlog

from actorproc.config.settings import Settings
from actorproc.errors import (
    ActorprocError,
    CorruptObject,
    RemovedFromGroup,
    SourceError,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    locate,
)
from actorproc.group.group import Group
from actorproc.host.end_progress import UntilEnd
from actorproc.host.owned_partitions import OwnPartitions
from actorproc.host.partition_slot import Done
from actorproc.partition.actor import HostContext
from actorproc.partition.statistics import PartitionStatistics
from actorproc.runtime.actor import Actor
from actorproc.runtime.clock import Clock
from actorproc.runtime.error_text import error_message
from actorproc.runtime.logger import LogThrottle, get_logger

log = get_logger(__name__)

HAND_OVER_PAUSE = 0.05
"""Seconds over which drained partitions are gathered, so that many are handed over in one write."""


SHOWN_FAILING = 50
"""Failing partitions that a heartbeat names: enough to see that something is wrong, and it stays small."""

_NO_PARTITIONS = (
    "nothing is processed until the source lists some, for which it is asked again each partition_refresh_interval: check that "
    "it reads what you mean, and may see it"
)

_NO_GROUP = (StoreError, CorruptObject)
"""The group's document cannot be read or written. A damaged one tells nobody that his lease has gone."""

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
    error: str | None
    """Why the latest look at the group, or at the source for its partitions, failed; None: it did not. What runs goes on."""


class Supervisor(Actor[Note]):
    """Renews, looks, and makes what runs here equal to the leases that this host holds.

    Args:
        until_end: where a run with an end is to get to.
    """

    def __init__(self, group: Group, common: HostContext, until_end: UntilEnd | None = None) -> None:
        super().__init__(mailbox=16)
        self._group = group
        self._common = common
        self._settings: Settings = common.settings
        self._clock: Clock = common.clock
        self.until_end = until_end or UntilEnd()
        self._partitions: Sequence[str] = ()
        self._partitions_at = float("-inf")
        self._said_empty = False
        self._members: list[str] = []
        self._fences = 0
        self._is_leaving = False  # nothing runs any more
        self._renewed = anyio.Event()
        self._looking: anyio.CancelScope | None = None
        self._error: str | None = None  # of the latest look, if it failed
        self._needs_mending = False  # the group's document
        self._failing_since = 0.0
        self._repeats = LogThrottle()
        self._log = log.bind(processor=common.processor, host=common.host)
        self._own = OwnPartitions(
            common, self.until_end, released=lambda: self.tell(Note.RELEASED), changed=self.nudge, raise_epoch=self._raise_epoch, log=self._log
        )  # fmt: skip

    def nudge(self) -> None:
        """Look at the group now."""
        self.tell(Note.LOOK)

    def stop(self) -> None:
        """Drain every partition, hand the leases over, leave the group; `run` then returns."""
        self._own.close()
        if self._looking is not None:
            self._looking.cancel()  # a store that hangs must not hold the drain up; what it was to see is looked at again
        self.nudge()

    def statistics(self) -> SupervisorStatistics:
        """What this host runs now, by partition."""
        own = self._own
        return SupervisorStatistics(
            self._common.host, self._group.incarnation, own.fenced, list(self._members), own.statistics(), own.done(), self._error
        )  # fmt: skip

    def hopeless(self) -> dict[str, str]:
        """Partitions here that need not be waited for -> why: see `Running.hopeless`."""
        return self._own.hopeless()

    @property
    def partitions(self) -> set[str]:
        """Partitions that run on this host, or are drained and wait to be handed over."""
        return self._own.names

    async def run(self) -> None:
        """Join the group, run partitions, and leave when told to stop.

        Raises:
            Fenced: another host with the same name has taken over.
            StoreRefused: the container may not be used, from the beginning or for `lease_expiration_interval`.
            CorruptObject: the group's document is damaged, as this host begins.
            ActorprocError: one of its tasks was cancelled, and nobody had asked it to stop.
        """
        left = False
        # So that what stores and sources log, which do not know whose they are, says it too.
        with structlog.contextvars.bound_contextvars(processor=self._common.processor, host=self._common.host):
            async with anyio.create_task_group() as tasks:
                await self._join()
                tasks.start_soon(self._renew_for_ever)
                tasks.start_soon(self._fence_in_time)
                self._own.begin(tasks)
                await self._serve()
                await self._leave()
                left = True
                tasks.cancel_scope.cancel()
        if not left:  # a task that ends cancelled ends its group without a word
            raise ActorprocError(
                "this host has ended without being asked to: one of its tasks was cancelled, by code that runs beside it, such as a "
                "handler that cancels tasks not its own"
            )

    async def _join(self) -> None:
        """Write the first heartbeat. It is tried as long as any request is, but one try of it only for a renew interval."""
        give_up = self._clock.monotonic() + self._settings.store_patience
        while True:
            try:
                return await self._renew()
            except StoreUnavailable as error:
                if self._clock.monotonic() >= give_up:
                    raise
                self._log.warning("supervisor.renew_failed", error=str(error))
                await self._clock.sleep(self._settings.lease_renew_interval / 4)

    # Timers

    async def _renew(self) -> None:
        self._log_dead_letters()
        error = None if self._error is None else _cut(self._error)
        failing, hopeless = self._shown_failing(), sorted(self._own.hopeless())
        await self._group.renew(
            {"partitions": len(self._own), "failing": failing, "hopeless": hopeless, "error": error}
        )
        self._renewed.set()
        self._renewed = anyio.Event()

    def _log_dead_letters(self, *, at_once: bool = False) -> None:
        """Log the dead letters of all partitions in one line, at most once a minute."""
        new = self._common.news.due(self._clock.monotonic(), at_once=at_once)
        if new is not None:
            self._log.warning(
                "processor.dead_letters", new=new.errors.total(), since_start=self._own.done().dead_letters,
                errors=new.most_common, example=new.example,
            )  # fmt: skip

    def _shown_failing(self) -> dict[str, str]:
        """Partitions that failed and have not got on since -> why. A few of them, cut: they ride in the heartbeat."""
        found = islice(self._own.failing().items(), SHOWN_FAILING)
        return {partition: _cut(error) for partition, error in found}

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
        while not self._is_leaving:
            left = self._group.valid_until() - self._clock.monotonic()
            if left > 0:
                if self._own.fenced:
                    self._own.unfence()
                    self._log.warning("supervisor.renewed")
                    self.nudge()
                await self._clock.sleep(left)
                continue
            if not self._own.fenced:
                self._fences += 1
                if left > -inf:  # else it has just joined anew, and not written any
                    self._log.error(
                        "supervisor.fenced_itself",
                        partitions=len(self._own),
                        why="no heartbeat was written in time; loop.blocked tells if a handler held the event loop up",
                    )
                self._own.fence()
            await self._renewed.wait()

    # Looking

    async def _serve(self) -> None:
        look_at = self._clock.monotonic()
        while not self._own.closing:
            note = await self.receive(look_at - self._clock.monotonic())
            with anyio.CancelScope() as self._looking:
                if note is Note.RELEASED:
                    await self._hand_over()
                elif not self._own.closing:  # it may have been while an earlier note was on its way
                    look_at = self._clock.monotonic() + await self._look()
            self._looking = None

    async def _look(self) -> float:
        """One cycle; in how many seconds the next is due."""
        fences = self._fences
        fenced = self._own.fenced
        try:
            view = await self._group.look(await self._known_partitions())
        except RemovedFromGroup:
            self._log.warning("supervisor.written_out", why="the others took this host for dead; it joins again")
            self._own.revoke_all()
            if not self._own.closing:
                self._group.rejoin()
                if not await self._has_renewed():
                    return self._clock.jitter(self._settings.lease_renew_interval / 4)
            return 0.0
        except (*_NO_GROUP, SourceError) as error:
            locate(error, self._common.store.url)
            self._needs_mending = isinstance(error, CorruptObject | StoreRefused)
            if self._needs_mending and not self._members:
                raise  # nothing runs here yet; what does goes on until somebody mends the document, or renews the credentials
            if self._look_failed(str(error)) and isinstance(error, StoreRefused):
                raise
            return self._clock.jitter(self._settings.lease_acquire_interval / 4)
        self._error, self._needs_mending = None, False
        self._members = sorted(view.members)
        if not fenced and fences == self._fences:
            # A view from before or during a fencing may be stale; a look follows the renewal.
            self._own.apply(view.mine)
        await self._hand_over()
        soon = view.look_again_in
        return self._clock.jitter(self._settings.lease_acquire_interval) if soon is None else soon

    def _look_failed(self, error: str) -> bool:
        """Whether it has failed for longer than the group has patience with a host."""
        now = self._clock.monotonic()
        if self._error is None:
            self._failing_since = now
        self._error = error
        lasted = now - self._failing_since
        too_long = lasted > self._settings.lease_expiration_interval
        if times := self._repeats.due((error, too_long), now):
            say = self._log.error if too_long else self._log.warning
            say("supervisor.look_failed", error=error, seconds=round(lasted, 3), times=times)
        return too_long

    async def _known_partitions(self) -> Sequence[str]:
        now = self._clock.monotonic()
        if now - self._partitions_at < self._settings.partition_refresh_interval:
            return self._partitions
        try:
            self._partitions, self._partitions_at = await self._asked_source(), now
        except Exception as error:  # whatever it is, what is known goes on
            if not self._partitions:
                raise SourceError(error_message(error)) from error
            self._log.warning("supervisor.partitions_failed", error=error_message(error))
        if not self._partitions and not self._said_empty:
            self._said_empty = True
            self._log.warning("processor.no_partitions", source=str(self._common.source), what_to_do=_NO_PARTITIONS)
        return self._partitions

    async def _asked_source(self) -> Sequence[str]:
        most = self._settings.store_timeout
        with anyio.move_on_after(most):  # while it does not answer no lease is taken, and none handed over
            return await self._common.source.partitions()
        raise SourceError(f"partitions() of the source has not answered within {most:g} s (store_timeout)")

    async def _hand_over(self) -> None:
        """Give the leases of drained partitions to their next owners, many in one write."""
        if not self._own.released:
            return
        if self._own.draining:
            await self._clock.sleep(HAND_OVER_PAUSE)
        released = self._own.released
        try:
            kept = await self._group.hand_over(released)
        except _NO_GROUP as error:
            self._log.warning("supervisor.hand_over_failed", error=str(error), partitions=len(released))
            return  # the next look tries again
        self._own.handed_over(partition for partition in released if partition not in kept)
        if kept and not self._own.fenced:
            self.nudge()  # the next look starts them again

    async def _raise_epoch(self, partition: str, epoch: int) -> None:
        """If the lease is ours all the same, the group has forgotten its epochs: mend it, and start with the new one."""
        try:
            await self._group.raise_epoch(partition, epoch)
        except _NO_GROUP as error:
            self._log.warning("supervisor.outrank_failed", partition=partition, epoch=epoch, error=str(error))
        self.nudge()

    # Leaving

    async def _leave(self) -> None:
        """Drain everything, hand it over, and say so. Bounded: what takes too long is left to expire."""
        self._log.info("supervisor.leaving", partitions=len(self._own))
        self._group.retire()
        self._own.drain_all()
        with anyio.move_on_after(self._settings.max_handoff_time + LEAVING_TIME):
            look_at = self._clock.monotonic()
            while True:
                if self._clock.monotonic() >= look_at:
                    look_at = self._clock.monotonic() + await self._look() / 4
                if not len(self._own) or (self._needs_mending and not self._own.draining):
                    break  # a damaged document waits for a person, not for a while
                if await self.receive(look_at - self._clock.monotonic()) is Note.RELEASED:
                    await self._hand_over()
        self._own.end_all()
        self._is_leaving = True
        self._log_dead_letters(at_once=True)
        with anyio.move_on_after(LEAVING_TIME):
            try:
                await self._group.leave()
            except _NO_GROUP as error:
                self._log.warning("supervisor.leave_failed", error=str(error), why="what is left of this host expires")


def _cut(error: str) -> str:
    """As much of it as rides in a heartbeat."""
    return error if len(error) <= _TOLD else f"{error[:_TOLD]} ..."
