"""Run until the end: takes the end of each partition once, watches the checkpoints, and stops when all have passed."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from typing import Any

from actorproc.errors import CorruptObject, EndNotReached, SourceError, StoreError
from actorproc.group.heartbeat import Incarnation, read_heartbeats
from actorproc.group.membership import GroupDocument, read_group
from actorproc.host.other_owners import OtherOwners
from actorproc.host.supervisor import Supervisor
from actorproc.output.chain import OutputChain
from actorproc.partition.actor import PartitionActor
from actorproc.records import Cursor
from actorproc.runtime.logger import REPEAT_INTERVAL
from actorproc.runtime.tasks import gather
from actorproc.sources.protocol import (
    End,
    Source,
    earliest_position,
    is_certainly_at_end,
    list_partitions,
    with_deadline,
)
from actorproc.sources.queue_protocol import QueueSource
from actorproc.storage.names import ProcessorLayout, named_partitions, natural
from actorproc.storage.store import Store

_UNREADABLE = (CorruptObject, SourceError, StoreError)

LOCAL_POLL = 0.01
"""Seconds between two looks at the partitions of this host, or more if they are many. A look costs no request, but
interrupts a handler that computes in a thread."""

_FLUSH_POLL = 0.002  # seconds, while a partition commits at its end

STORE_POLL = 0.5
"""Seconds between two looks at the checkpoints of other hosts' partitions, at least."""

_LOCAL_POLL_EACH = 0.0002  # seconds for each of them: a look takes some microseconds per partition
_STORE_POLL_EACH = 0.01  # seconds for each of them: about a hundred requests a second, however many there are
_NAMED = 5  # reasons that the error message lists


class RunUntilEnd:
    """One run with an end.

    Args:
        log: bound to processor and host.
        sets_timers: whether the handler may have set timers, which fire only where a partition is run.
    """

    def __init__(
        self, source: Source, store: Store, layout: ProcessorLayout, host: str, log: Any, *, sets_timers: bool = False
    ) -> None:
        self._source = source
        self._store = store
        self._layout = layout
        self._clock = store.clock
        self._log = log
        self._sets_timers = sets_timers
        self._ends: dict[str, End] = {}
        self._later_ends: dict[str, End] = {}  # of partitions that were empty at the start
        self.waiting: set[str] = set()
        """Partitions that have not passed their end."""
        self._failed: dict[str, str] = {}  # partition -> why it will not reach its end
        self._not_begun: set[str] = set()  # no host has opened them
        self._without_end: dict[str, str] = {}  # partition -> why its end could not be read
        self._lost: dict[str, str] = {}  # partition -> how the source has lost records that were processed
        # Partition -> the first heartbeat that reports it as failed.
        self._reports: dict[str, tuple[Incarnation, int]] = {}
        self._remotely_failed: dict[str, str] = {}
        self._other_owners = OtherOwners(store, layout, host)
        self._emptied_elsewhere: set[str] = set()  # queues of other hosts
        self._flushed: dict[str, PartitionActor] = {}  # the actors that were asked to commit at their end
        self._supervisor: Supervisor | None = None
        self._ended = False  # by itself: nobody has stopped this host

    async def take_ends(self) -> None:
        """Note where each partition ends now. A partition whose end cannot be read is logged and left out.

        Raises:
            SourceError: the partitions cannot be listed.
            StoreError: the store cannot be used.
        """

        async def end(partition: str) -> End | None:
            try:
                return await self._end(partition)
            except (CorruptObject, SourceError) as error:
                self._log.warning("processor.end_unknown", partition=partition, error=str(error))
                self._without_end[partition] = f"could not tell where it ends: {error}"
                return None

        partitions = await with_deadline(list_partitions(self._source), "partitions", self._store.limits)
        found = await gather(list(partitions), end)
        self._ends = {partition: end for partition, end in found.items() if end is not None}
        self.waiting = set(self._ends)

    async def watch(self, supervisor: Supervisor) -> None:
        """Stop `supervisor` once every partition has passed its end, or all that are left have failed for good.

        If all that are left on this host have failed for good, it does not wait for the other hosts, which may be
        waiting for this one: they get its leases, and try those partitions once more.
        """
        self._supervisor = supervisor
        store_poll_at = self._clock.monotonic()
        report_at = store_poll_at + REPEAT_INTERVAL
        while True:
            await self._look_here(supervisor)
            if self._clock.monotonic() >= store_poll_at:
                elsewhere = sorted(self.waiting - supervisor.partitions.keys())
                await self._look_elsewhere(elsewhere)
                wait = max(STORE_POLL, _STORE_POLL_EACH * len(elsewhere))
                store_poll_at = self._clock.monotonic() + wait
            if self._clock.monotonic() >= report_at:
                report_at = self._clock.monotonic() + REPEAT_INTERVAL
                await self._report(supervisor.partitions.keys())
            here = self.waiting & supervisor.partitions.keys()
            failed_here = supervisor.partitions.failed_for_good()
            remotely = {p: why for p, why in (self._remotely_failed | self._lost).items() if p not in here}
            self._failed = remotely | failed_here
            left = self.waiting - (self._emptied_elsewhere - supervisor.partitions.keys())
            if (here and here <= failed_here.keys()) or left <= self._failed.keys():
                self.waiting = left
                break
            pause = _FLUSH_POLL if self._flushes(supervisor) else LOCAL_POLL
            await self._clock.sleep(max(pause, _LOCAL_POLL_EACH * len(self.waiting)))
        if not self.waiting:
            self._log.info("processor.reached_end", partitions=len(self._ends))
        self._ended = True
        supervisor.stop()

    # Partitions of this host

    async def _look_here(self, supervisor: Supervisor) -> None:
        """Go by the commits of the actors. One that has processed everything up to the end is asked to commit."""
        for partition in sorted(self.waiting & supervisor.partitions.keys()):
            actor = supervisor.partitions[partition].actor
            if actor is None or actor.flushing or not self._has_processed(actor):
                continue
            if self._flushed.get(partition) is not actor or not self._has_committed(actor):
                self._flushed[partition] = actor
                actor.flush()
            elif (shortfall := await self._shortfall(actor)) is not None:
                actor.abort(shortfall)
            else:
                self.waiting.discard(partition)

    def _flushes(self, supervisor: Supervisor) -> bool:
        """Whether a partition of this host commits at its end."""
        actors = (slot.actor for slot in supervisor.partitions.values())
        return any(actor is not None and actor.flushing for actor in actors)

    def _has_processed(self, actor: PartitionActor) -> bool:
        done, end = actor.statistics, self._ends[actor.partition]
        if done.state != "running":
            return False
        if done.caught_up is not None:
            return True
        if not done.counts.records and end.sequence is not None and done.cursor.sequence > end.sequence:
            return False  # beyond the end from the start: the source has to confirm that it has such a position
        if self._sets_timers and end.sequence is not None and done.cursor.sequence <= end.sequence:
            return False  # the source has to say that there is no more: stream time may follow the wall clock then
        return self._is_past(actor.partition, done.cursor)

    def _has_committed(self, actor: PartitionActor) -> bool:
        done = actor.statistics
        if done.caught_up is not None and done.committed.sequence >= done.caught_up.sequence:
            return True
        return self._is_past(actor.partition, done.committed)

    def _is_past(self, partition: str, cursor: Cursor) -> bool:
        end = self._ends[partition]
        return self._source.reached(cursor, end) and is_certainly_at_end(self._source, partition, cursor, end)

    async def _shortfall(self, actor: PartitionActor) -> SourceError | None:
        """The error if the source says that it has nothing more, and records that it had at the start were not read."""
        partition, cursor = actor.partition, actor.statistics.committed
        newest = self._ends[partition].sequence
        if self._source.reached(cursor, self._ends[partition]) or newest is None:
            return None
        if not await self._is_short(partition, cursor, newest):
            return None
        return SourceError(
            f"the source has nothing more of partition {partition} after sequence {cursor.sequence}, and at the start "
            f"of this run its newest record was {newest}: the records in between are gone, or cannot be read"
        )

    async def _is_short(self, partition: str, cursor: Cursor, newest: int) -> bool:
        """Whether the source still has records after `cursor`, up to sequence `newest`.

        False if positions and sequences of the source cannot be compared.
        """
        before = self._source.sequence_before(partition, cursor.position)
        upto = max(cursor.sequence, -1 if before is None else before)
        if upto >= newest:
            return False
        if (
            before is None
            and cursor.sequence < 0
            and cursor.position != await earliest_position(self._source, partition)
        ):
            return False  # a position without a sequence may be anywhere, at the end too
        now = (await self._end(partition)).sequence
        return now is not None and upto < now

    # Partitions of other hosts

    async def _look_elsewhere(self, partitions: Sequence[str]) -> None:
        """Go by the commits of other hosts. Of a queue these do not show the end, so its owner sees to it alone."""
        if not isinstance(self._source, QueueSource):
            committed = await gather(partitions, self._is_committed_elsewhere)
            done = {partition for partition, is_committed in committed.items() if is_committed}
            self.waiting -= done - await self._timers_left(done) if self._sets_timers else done
            if not_begun := self._not_begun & self.waiting:
                await self._follow_replaced(not_begun)
            return
        try:
            self._emptied_elsewhere = await self._other_owners.have(await self._group(), partitions)
        except _UNREADABLE as error:
            self._log.warning("processor.end_unknown", partition=_named(partitions), error=str(error))

    async def _timers_left(self, partitions: set[str]) -> set[str]:
        """Those that no other live host runs, so that only this one can fire their timers, once it has them."""
        try:
            group = await self._group()
            run_elsewhere = await self._other_owners.have(group, partitions)
        except _UNREADABLE as error:
            self._log.warning("processor.end_unknown", partition=_named(partitions), error=str(error))
            return partitions
        not_run = {partition for partition in partitions if group.wishes.pauses(partition)}
        return partitions - run_elsewhere - not_run - group.ended.keys() - group.vanished.keys()

    async def _follow_replaced(self, not_begun: set[str]) -> None:
        """The source may have replaced partitions before a host began them: then wait for those that follow them."""
        try:
            listed = await with_deadline(list_partitions(self._source), "partitions", self._store.limits)
            group = await self._group()
            replaced = not_begun - listed.keys() - group.leases.keys()
            followers = [name for name, parents in listed.items() if replaced & set(parents)]
            ends = {name: await self._end(name) for name in followers}
        except _UNREADABLE as error:
            self._log.warning("processor.end_unknown", partition=_named(not_begun), error=str(error))
            return
        lost = replaced - {parent for name in followers for parent in listed[name]}
        self._without_end |= dict.fromkeys(lost, "the source lists it no more, nor a partition that follows it")
        self.waiting = (self.waiting - replaced) | (ends.keys() - self._ends.keys())
        self._ends = ends | self._ends

    async def _is_committed_elsewhere(self, partition: str) -> bool:
        """Whether the checkpoint, or a commit after it, has passed the end, or says that the partition has ended."""
        self._lost.pop(partition, None)
        self._not_begun.discard(partition)
        try:
            tip = await OutputChain(self._store, self._layout, partition).tip()
            if tip is None:
                self._not_begun.add(partition)
                return False
            if tip.ended:
                return True
            if tip.ahead:
                return False
            return await self._is_past_elsewhere(partition, tip.cursor)
        except _UNREADABLE as error:
            self._log.warning("processor.end_unknown", partition=partition, error=str(error))
            return False

    async def _is_past_elsewhere(self, partition: str, cursor: Cursor) -> bool:
        source, end = self._source, self._ends[partition]
        if end.sequence is None and not source.reached(cursor, end):
            end = await self._later_end(partition)
        if not source.reached(cursor, end):
            return False
        if not is_certainly_at_end(source, partition, cursor, end):
            if source.sequence_before(partition, cursor.position) is not None or cursor.sequence >= 0:
                return False
            # Nothing was processed: either it began at the end, or it is about to begin.
            return cursor.position != await earliest_position(source, partition)
        if end.sequence is None or cursor.sequence <= end.sequence:
            return True
        now = await self._end(partition)
        if now.sequence is None or cursor.sequence <= now.sequence:  # it has grown
            return True
        self._lost[partition] = (
            f"its newest record is {now.sequence}, and this processor has read up to {cursor.sequence}: records "
            "are gone, or the stream was made anew"
        )
        return False

    async def _later_end(self, partition: str) -> End:
        """A later end of a partition that was empty at the start: positions cannot be compared with an empty one's.

        Taken once, as soon as there is a record: a stream that grows would be followed for ever.
        """
        end = self._later_ends.get(partition) or await self._end(partition)
        if end.sequence is not None:
            self._later_ends[partition] = end
        return end

    async def _end(self, partition: str) -> End:
        return await with_deadline(self._source.end(partition), "end", self._store.limits)

    async def _group(self) -> GroupDocument:
        return await read_group(self._store, self._layout) or GroupDocument.of()

    # Reports

    async def _report(self, running: Set[str]) -> None:
        """Log which partitions are waited for, and look which of them other hosts report as failed for good."""
        here, elsewhere = self.waiting & running, self.waiting - running
        if self.waiting:
            self._log.info("processor.waiting_for_end", here=_named(here), elsewhere=_named(elsewhere))
        self._remotely_failed = await self._failed_elsewhere(elsewhere) if elsewhere else {}

    async def _failed_elsewhere(self, partitions: set[str]) -> dict[str, str]:
        """Partition -> error, where its owner lives and has reported it as failed for good in three heartbeats."""
        try:
            group = await self._group()
            heartbeats = [heartbeat for heartbeat, _ in await read_heartbeats(self._store, self._layout)]
        except _UNREADABLE:
            return self._remotely_failed  # the supervisor reads the group, too, and logs the error
        owners = {(h.host, h.incarnation): h for h in heartbeats}
        before, self._reports, failed = self._reports, {}, {}
        for partition in partitions:
            heartbeat = owners.get(group.owner_of(partition) or ("", ""))
            if heartbeat is None or partition not in heartbeat.report.failed_for_good:
                continue
            who = (heartbeat.host, heartbeat.incarnation)
            first = before.get(partition, (who, heartbeat.beat))
            self._reports[partition] = first if first[0] == who else (who, heartbeat.beat)
            if heartbeat.beat >= self._reports[partition][1] + 2:
                failed[partition] = (
                    f"on {heartbeat.host}: {heartbeat.report.failing.get(partition, 'it fails again and again')}"
                )
        return failed

    def check(self, signal: str | None = None) -> None:
        """Call it after the run.

        Args:
            signal: name of the signal that stopped it.

        Raises:
            EndNotReached: names the partitions that have not reached their end, and why. Or rows were lost.
        """
        if self._supervisor is None:
            by = "" if signal is None else f" by {signal}"
            raise EndNotReached(f"stopped{by} while starting: nothing was begun")
        if lost := self._supervisor.partitions.rows_lost:
            lines = [f"partition {partition}: {lost[partition]}" for partition in sorted(lost, key=natural)[:_NAMED]]
            raise EndNotReached("\n".join(["rows were lost, because the handler emitted them too late", *lines]))
        left = sorted(self.waiting | self._without_end.keys(), key=natural)
        if left:
            raise EndNotReached(self._message(left, signal))

    def _message(self, left: list[str], signal: str | None) -> str:
        count = len(self._ends) + len(self._without_end)
        have = "has not reached the end it" if len(left) == 1 else "have not reached the end they"
        lines = [f"{len(left)} of {count} partition{'' if count == 1 else 's'} {have} had at the start"]
        why_not, reasons = self._failed | self._without_end, dict[str, list[str]]()
        why = (
            "it could do nothing more: all partitions that it had left failed"
            if self._ended
            else (f"{signal or 'stop()'} stopped it")
        )
        for partition in left:
            reasons.setdefault(why_not.get(partition, f"not there yet when this host ended ({why})"), []).append(
                partition
            )
        lines += [f"{named_partitions(names)}: {why}" for why, names in list(reasons.items())[:_NAMED]]
        if len(reasons) > _NAMED:
            lines.append(f"and {sum(map(len, list(reasons.values())[_NAMED:]))} more")
        lines.append("What is committed stays; the next run goes on from there")
        return "\n".join(lines)


def _named(partitions: Collection[str]) -> str | None:
    return named_partitions(sorted(partitions, key=natural)) if partitions else None
