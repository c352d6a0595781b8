"""The supervisor actor, one per host: keeps the host in its group by heartbeats and looks, and fences it if need be."""

from __future__ import annotations

from itertools import islice
from math import inf

import anyio
import structlog

from actorproc.errors import (
    ActorprocError,
    CorruptObject,
    Fenced,
    RemovedFromGroup,
    SourceError,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    locate,
)
from actorproc.group.group import Group
from actorproc.group.reports import HostReport
from actorproc.host.end_watch import watch_ends
from actorproc.host.failing import Failing, store_outage
from actorproc.host.history_writer import HistoryWriter
from actorproc.host.lease_writer import GROUP_UNUSABLE, LeaseWriter
from actorproc.host.offset_mirror import OffsetMirror
from actorproc.host.owned_partitions import Abandon, Message, OwnedPartitions, RaiseEpoch, Vanished, Wake
from actorproc.host.partition_list import PartitionList
from actorproc.host.reporting import abandoned_of, blocked_report, progress_of, reports_of_tables, sink_errors
from actorproc.host.statistics import Statistics
from actorproc.output.source_identity import read_source
from actorproc.partition.host_context import HostContext
from actorproc.runtime.actor import Actor
from actorproc.runtime.logger import LogThrottle, get_logger
from actorproc.runtime.tasks import first_cause
from actorproc.runtime.watchdog import Blockage
from actorproc.sinks.closed_partitions import ClosedPartitions
from actorproc.storage.store import Store

logger = get_logger(__name__)

FAILING_IN_HEARTBEAT = 50
"""Failing partitions that a heartbeat names: enough to see that something is wrong, and it stays small."""

_ERROR_IN_HEARTBEAT = 600  # characters

LEAVING_TIME = 5.0
"""Seconds that a stopping host takes for the group, beyond the time in which its partitions drain."""


class Supervisor(Actor[Message]):
    """Keeps this host in the group, and makes the partitions that run here match the leases of this host."""

    def __init__(self, group: Group, context: HostContext) -> None:
        super().__init__(mailbox=16)
        self._group, self._context = group, context
        self._settings, self._clock = context.settings, context.clock
        self._members: list[str] = []
        self._fences = 0
        self._has_left = False  # the group
        self._has_ended = False  # also by an error
        self._renewed = anyio.Event()
        self._looking: anyio.CancelScope | None = None
        self._error: Failing | None = None  # of the looks, if the latest one failed; or why this host has ended
        self._renewal_error: Failing | None = None  # of the heartbeats, if the latest one failed
        self._group_needs_repair = False  # its document is corrupt, or the store refuses it
        self._failing_since = 0.0  # of the looks, by the monotonic clock
        self._repeats = LogThrottle()
        self._logger = logger.bind(processor=context.processor, host=context.host)
        self._listed = PartitionList(context, self._logger)
        self.partitions = OwnedPartitions(context, self.tell, self._logger)
        self.closed: ClosedPartitions | None = None
        """Delivers the rest of partitions that have ended to the sinks, if there are any."""
        if context.sinks and context.sinks.need_owner:
            self.closed = ClosedPartitions(context.sinks, context.store, context.layout, context.host, self._logger)
        self._leases = LeaseWriter(group, self.partitions, self._listed, self.nudge, self._logger)

    def nudge(self) -> None:
        """Look at the group now."""
        self.tell(Wake.LOOK)

    def stop(self) -> None:
        """Drain every partition, hand the leases over and leave the group; `run` then returns."""
        self.partitions.closing = True
        if self._looking is not None:
            self._looking.cancel()  # a store that hangs must not hold the drain up; the group is looked at again
        self.nudge()

    def statistics(self, *, running: bool = True) -> Statistics:
        context, error = self._context, self._failing()
        slots = self.partitions
        return Statistics(
            processor=context.processor, host=context.host, running=running and not self._has_ended,
            incarnation=self._group.incarnation, fenced=slots.fenced, members=tuple(self._members),
            error=None if error is None else error.text, error_since=None if error is None else error.since,
            counts=slots.counts(),
            partitions=tuple(slot.statistics() for slot in slots.by_name()), abandoned=slots.abandoned(),
            store_requests=dict(context.store.requests), store_failures=dict(context.store.failures),
            source_requests=context.costs.requests, source_bytes=context.costs.bytes,
            source_charges=dict(context.costs.charges), source_throttled=context.source.throttled,
            read_ahead_bytes=context.budget.used,
            uncommitted_bytes=context.held.used, seconds=dict(context.times.seconds),
            sink_rows={} if context.sinks is None else dict(context.sinks.delivered),
            tables=() if context.tables is None else context.tables.statistics(),
            durations={activity: found.copy() for activity, found in context.times.durations.items()},
        )  # fmt: skip

    def _failing(self) -> Failing | None:
        """The present failure of this host: store, group or source. An outage of the store shows during retries."""
        return store_outage(self._context.store, self._clock) or self._error or self._renewal_error

    def _failed(self, before: Failing | None, error: str) -> Failing:
        """The failure, with its beginning."""
        return Failing(error, self._clock.wall()) if before is None else before._replace(text=error)

    async def run(self) -> None:
        """Join the group, run partitions, and leave after `stop`.

        Raises:
            Fenced: another host with the same name has taken over.
            StoreRefused: the container may not be used, from the beginning or for `lease_expiration_interval`.
            CorruptObject: the group's document is corrupt as this host begins.
            ActorprocError: other code of this process has cancelled one of its tasks.
        """
        try:
            await self._run()
        except Exception as error:
            self._error = Failing(str(first_cause(error)), self._clock.wall())
            raise
        finally:
            self._has_ended = True

    async def _run(self) -> None:
        # Stores and sources do not know processor and host; their log lines get both from here.
        with structlog.contextvars.bound_contextvars(processor=self._context.processor, host=self._context.host):
            async with anyio.create_task_group() as tasks:
                await self._join()
                tasks.start_soon(self._renew_forever)
                tasks.start_soon(self._fence_in_time)
                self.partitions.begin(tasks)
                tasks.start_soon(watch_ends, self._context, self.partitions, self._logger)
                if self.closed is not None:
                    tasks.start_soon(self.closed.run)
                if self._settings.history_interval:
                    tasks.start_soon(HistoryWriter(self._context, self.partitions, self._logger).run)
                mirror = None
                if (group := self._settings.mirror_offsets) is not None:
                    mirror = OffsetMirror(group, self._context, self.partitions, self._logger)
                    tasks.start_soon(mirror.run)
                if self._context.hooks.wanted:
                    tasks.start_soon(self._context.hooks.run)
                if (tables := self._context.tables) is not None:
                    tasks.start_soon(tables.run, self._is_first)
                if tables is not None or self._settings.compact_interval:
                    from actorproc.host.compactor import Compactor, interval_of  # a start without it is quicker

                    if interval_of(self._context):
                        tasks.start_soon(Compactor(self._context, self._logger).run, self._is_first)
                await self._serve()
                await self._leave()
                if tables is not None:
                    await tables.finish(self._settings.store_patience if self._context.until_end else None)
                await self._context.hooks.finish(LEAVING_TIME)
                if mirror is not None:
                    await mirror.finish()
                tasks.cancel_scope.cancel()
        self.check_left()

    def _is_first(self) -> bool:
        """Whether this host does what one host of the group does. It looks no more often than at the group."""
        return bool(self._members) and self._context.host == self._members[0] and not self.partitions.fenced

    def check_left(self) -> None:
        """A task that ends cancelled ends its group without an error.

        Raises:
            ActorprocError: this host has ended before it left its group.
        """
        if not self._has_left:
            error = (
                "this host has ended, and nobody stopped it: other code of this process has cancelled one of its "
                "tasks, for example a handler that cancels all tasks"
            )
            self._error = Failing(error, self._clock.wall())
            raise ActorprocError(error)

    async def _join(self) -> None:
        """Write the first heartbeat. Until then nobody counts on this host."""
        while not self.partitions.closing:
            try:
                await self._renew()
                self._error = None
                return
            except StoreUnavailable as error:
                self._error = self._failed(self._error, str(error))
                self._logger.warning("supervisor.renew_failed", error=str(error))
            await self.receive(self._settings.lease_renew_interval / 4)

    # Timers

    def _report(self) -> HostReport:
        failing = islice(self.partitions.failing().items(), FAILING_IN_HEARTBEAT)
        found = [slot.statistics() for slot in self.partitions.by_name()]
        tables = () if self._context.tables is None else self._context.tables.statistics()
        return HostReport(
            partitions=len(self.partitions),
            progress=progress_of(found),
            max_process_time=self._settings.max_process_time,
            failing={partition: _cut(error) for partition, error in failing},
            sink_errors={name: _cut(error) for name, error in sink_errors(found, tables).items()},
            tables=reports_of_tables(tables),
            abandoned=abandoned_of(islice(self.partitions.abandoned().items(), FAILING_IN_HEARTBEAT)),
            failed_for_good=tuple(sorted(self.partitions.failed_for_good())),
            error=None if self._error is None else _cut(self._error.text),
            error_since=None if self._error is None else self._error.since,
        )

    async def say_blocked(self, store: Store, found: Blockage) -> None:
        """Write a heartbeat that says why this host's event loop does not answer.

        For the thread of the watchdog, with a store of its own.
        """
        report = blocked_report(self._report(), found, self._clock.wall() - found.seconds)
        await self._group.say(store, report)

    async def _renew(self) -> None:
        self._log_dead_letters()
        await self._group.renew(self._report())
        self._renewal_error = None
        self._renewed.set()
        self._renewed = anyio.Event()

    def _log_dead_letters(self, *, at_once: bool = False) -> None:
        """Log the dead letters of all partitions in one line, at most once a minute."""
        if new := self._context.dead_letter_summary.due(self._clock.monotonic(), at_once=at_once):
            self._logger.warning(
                "processor.dead_letters", new=new.total(), since_start=self.partitions.counts().dead_letters,
                errors=dict(new.most_common(5)), example=self._context.dead_letter_summary.example,
            )  # fmt: skip

    async def _renew_forever(self) -> None:
        interval = self._settings.lease_renew_interval
        while True:
            with anyio.move_on_after(interval):
                await self.partitions.found_stuck.wait()  # other hosts and people learn it at once
                self.partitions.found_stuck = anyio.Event()
            interval = self._settings.lease_renew_interval / (1 if await self._try_renew() else 4)

    async def _try_renew(self) -> bool:
        try:
            await self._renew()
        except StoreError as error:
            self._renewal_error = self._failed(self._renewal_error, str(error))
            self._context.hooks.add_error(error)
            self._logger.warning("supervisor.renew_failed", error=str(error))
            return False
        return True

    async def _fence_in_time(self) -> None:
        """Stop everything before others may take this host for dead, until the next heartbeat is written."""
        while not self._has_left:
            left = self._group.valid_until() - self._clock.monotonic()
            if left > 0:
                if self.partitions.fenced:
                    self.partitions.fenced = False
                    self._logger.warning("supervisor.renewed")
                    self.nudge()
                await self._clock.sleep(left)
                continue
            if not self.partitions.fenced:
                self._fences += 1
                if left > -inf:  # else it has just joined anew, and has written no heartbeat yet
                    self._logger.error(
                        "supervisor.fenced_itself",
                        partitions=len(self.partitions),
                        why="no heartbeat was written in time; see loop.blocked if a handler was the cause, "
                        "and loop.starved if this process got no CPU",
                    )
                self.partitions.fence()
            await self._renewed.wait()

    # Looking

    async def _serve(self) -> None:
        look_at = self._clock.monotonic()
        while not self.partitions.closing:
            message = await self.receive(look_at - self._clock.monotonic())
            with anyio.CancelScope() as self._looking:
                if message is Wake.HAND_OVER:
                    await self._leases.hand_over()
                elif isinstance(message, RaiseEpoch | Abandon | Vanished):
                    await self._leases.write(message)
                elif not self.partitions.closing:  # an earlier message may have been on its way
                    look_at = self._clock.monotonic() + await self._look()
            self._looking = None

    async def _look(self) -> float:
        """One cycle. Returns the seconds until the next one is due."""
        fences = self._fences
        fenced = self.partitions.fenced
        try:
            view = await self._group.look(self._listed)
        except RemovedFromGroup:
            self._logger.warning(
                "supervisor.removed_from_group", why="other hosts considered this host dead; it joins the group again"
            )
            self.partitions.revoke_all()
            if self.partitions.closing or await self._rejoin():
                return 0.0
            return self._clock.jitter(self._settings.lease_renew_interval / 4)
        except (*GROUP_UNUSABLE, SourceError) as error:
            locate(error, self._context.store.url)
            self._group_needs_repair = isinstance(error, CorruptObject | StoreRefused)
            if self._group_needs_repair and not self._members:
                raise  # nothing runs here yet; later, partitions go on until somebody restores the document
            self._context.hooks.add_error(error)
            if self._look_failed(str(error)) and isinstance(error, StoreRefused):
                raise
            return self._clock.jitter(self._settings.lease_acquire_interval / 4)
        self._error, self._group_needs_repair = None, False
        self._members = sorted(view.members)
        if self.closed is not None:
            self.closed.note([name for name, lease in view.leases.items() if lease.closed], self._members)
        if not fenced and fences == self._fences:
            # A view from before or during a fencing may be stale; a look follows the renewal.
            self.partitions.origins.note(view)
            self.partitions.apply(view.mine)
        await self._leases.hand_over()
        pause = self._clock.jitter(self._settings.lease_acquire_interval)
        return pause if view.look_again_in is None else min(pause, view.look_again_in)

    async def _rejoin(self) -> bool:
        """Join anew, after other hosts considered this one dead. Returns whether it has succeeded.

        Raises:
            Fenced: meanwhile the processor was deleted, renamed or begun anew: this host may have been paused for long.
        """
        context = self._context
        try:
            recorded = await read_source(context.store, context.layout)
            if recorded is None or recorded.put_id != context.processor_id:
                raise Fenced(
                    f"{context.layout.origin}: processor {context.processor!r} was deleted, renamed or begun anew "
                    "while other hosts considered this host dead; it stops, since it would process another stream's "
                    "positions"
                )
            # While this host was away, its registration as a reader may have expired.
            await context.source.register(context.processor, context.store.url)
        except (StoreUnavailable, SourceError) as error:
            self._look_failed(str(error))
            return False
        self._group.rejoin()
        return await self._try_renew()

    def _look_failed(self, error: str) -> bool:
        """Note a failed look. Whether looks have failed for longer than a lease is valid."""
        now = self._clock.monotonic()
        if self._error is None:
            self._failing_since = now
        self._error = self._failed(self._error, error)
        lasted = now - self._failing_since
        too_long = lasted > self._settings.lease_expiration_interval
        if times := self._repeats.due((error, too_long), now):
            say = self._logger.error if too_long else self._logger.warning
            say("supervisor.look_failed", error=error, seconds=round(lasted, 3), times=times)
        return too_long

    # Leaving

    async def _leave(self) -> None:
        """Drain all partitions, hand their leases over and leave the group. Leases that take too long expire."""
        self._logger.info("supervisor.leaving", partitions=len(self.partitions))
        self._group.retire()
        self.partitions.drain_all()
        with anyio.move_on_after(self._settings.max_handoff_time + LEAVING_TIME):
            look_at = self._clock.monotonic()
            while True:
                if self._clock.monotonic() >= look_at:
                    look_at = self._clock.monotonic() + await self._look() / 4
                if not len(self.partitions) or (self._group_needs_repair and not self.partitions.draining):
                    break  # a corrupt document must be repaired by hand: waiting does not help
                if await self.receive(look_at - self._clock.monotonic()) is Wake.HAND_OVER:
                    await self._leases.hand_over()
        self.partitions.cancel_all("lost")
        self._has_left = True
        self._log_dead_letters(at_once=True)
        with anyio.move_on_after(LEAVING_TIME):
            try:
                await self._group.leave()
            except GROUP_UNUSABLE as error:
                self._logger.warning("supervisor.leave_failed", error=str(error), why="its remaining leases expire")


def _cut(error: str) -> str:
    """The beginning of an error, short enough for a heartbeat."""
    return error if len(error) <= _ERROR_IN_HEARTBEAT else f"{error[:_ERROR_IN_HEARTBEAT]} ..."
