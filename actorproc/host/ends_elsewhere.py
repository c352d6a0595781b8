"""Follows the partitions of other hosts to their ends, by checkpoints, heartbeats and the group."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from actorproc.group.heartbeat import Heartbeat, Incarnation, read_heartbeats
from actorproc.group.membership import GroupDocument, read_group
from actorproc.host.end_message import named
from actorproc.host.ends import UNREADABLE, Ends
from actorproc.output.chain import OutputChain
from actorproc.records import Cursor
from actorproc.runtime.tasks import gather
from actorproc.sources.protocol import earliest_position, is_certainly_at_end
from actorproc.sources.queue_protocol import QueueSource
from actorproc.storage.names import ProcessorLayout, natural
from actorproc.storage.store import Store


class EndsElsewhere:
    """Looks at all partitions that do not run here, now and then.

    Args:
        host: this one.
        log: bound to processor and host.
        needs_owner: whether only a host that runs a partition can finish it: by timers that fire, or by sinks.
    """

    def __init__(
        self, ends: Ends, store: Store, layout: ProcessorLayout, host: str, log: Any, *, needs_owner: bool
    ) -> None:
        self._ends, self._logger = ends, log
        self._store, self._layout, self._host = store, layout, host
        self._needs_owner = needs_owner
        self.seen_to: set[str] = set()
        """Partitions of a queue that other live hosts empty: this run does not wait for them."""
        self._reported: dict[str, str] = {}  # partition -> why its owner cannot get on
        self._lost: dict[str, str] = {}  # partition -> how the source has lost records that were processed
        self._first_beats: dict[Incarnation, int] = {}
        self._first_reports: dict[tuple[str, Incarnation], int] = {}  # the first heartbeat that reports a failure

    @property
    def failed(self) -> dict[str, str]:
        """Partition -> why it will not reach its end."""
        return self._reported | self._lost

    def forget(self, partition: str) -> None:
        """Forget what was found out: the partition runs on this host now."""
        self.seen_to.discard(partition)
        self._reported.pop(partition, None)
        self._lost.pop(partition, None)

    async def look(self, partitions: Set[str]) -> None:
        """Note which of them have passed their ends, or never will."""
        try:
            if isinstance(self._ends.source, QueueSource):  # commits do not show its end: leave it to its owner
                self.seen_to = await self._run_by_others(await self._group(), partitions)
            else:
                await self._look_at_commits(partitions)
        except UNREADABLE as error:
            self._logger.warning("processor.end_unknown", partition=named(partitions), error=str(error))

    async def _look_at_commits(self, partitions: Set[str]) -> None:
        committed = await gather(sorted(partitions), self._is_committed)
        done = {partition for partition, is_committed in committed.items() if is_committed}
        self._ends.waiting -= done - await self._timers_left(done) if self._needs_owner else done
        if not_begun := {partition for partition, is_committed in committed.items() if is_committed is None}:
            await self._follow_replaced(not_begun)

    async def _timers_left(self, partitions: set[str]) -> set[str]:
        """Those that no other live host runs, so that only this one can fire their timers, once it has them."""
        group = await self._group()
        not_run = {partition for partition in partitions if group.wishes.pauses(partition)}
        elsewhere = await self._run_by_others(group, partitions)
        return partitions - elsewhere - not_run - group.ended.keys() - group.vanished.keys()

    async def _follow_replaced(self, not_begun: set[str]) -> None:
        """The source may have replaced partitions before a host began them: then wait for those that follow them."""
        ends = self._ends
        listed = await ends.listed()
        replaced = not_begun - listed.keys() - (await self._group()).leases.keys()
        followers = [name for name, parents in listed.items() if replaced & set(parents)]
        found = {name: await ends.read(name) for name in followers}
        lost = replaced - {parent for name in followers for parent in listed[name]}
        ends.unknown |= dict.fromkeys(lost, "the source lists it no more, nor a partition that follows it")
        ends.waiting = (ends.waiting - replaced) | (found.keys() - ends.found.keys())
        ends.found = found | ends.found

    async def _is_committed(self, partition: str) -> bool | None:
        """Whether the checkpoint, or a commit after it, has passed the end, or says that the partition has ended.

        None: no host has begun the partition.
        """
        self._lost.pop(partition, None)
        try:
            tip = await OutputChain(self._store, self._layout, partition).tip()
            if tip is None:
                return None
            return tip.ended or (not tip.ahead and await self._is_past(partition, tip.cursor))
        except UNREADABLE as error:
            self._logger.warning("processor.end_unknown", partition=partition, error=str(error))
            return False

    async def _is_past(self, partition: str, cursor: Cursor) -> bool:
        source, end = self._ends.source, self._ends.found[partition]
        if end.sequence is None and not source.reached(cursor, end):
            # Positions cannot be compared with an empty partition's. The first record that is seen counts as there at
            # the start; to take its end again and again would follow a stream that grows for ever.
            end = await self._ends.read(partition)
            if end.sequence is not None:
                self._ends.found[partition] = end
        if not source.reached(cursor, end):
            return False
        if not is_certainly_at_end(source, partition, cursor, end):
            if source.sequence_before(partition, cursor.position) is not None or cursor.sequence >= 0:
                return False
            # Nothing was processed: either it began at the end, or it is about to begin.
            return cursor.position != await earliest_position(source, partition)
        if end.sequence is None or cursor.sequence <= end.sequence:
            return True
        now = await self._ends.read(partition)
        if now.sequence is None or cursor.sequence <= now.sequence:  # it has grown
            return True
        self._lost[partition] = (
            f"its newest record is {now.sequence}, and this processor has read up to {cursor.sequence}: records "
            "are gone, or the stream was made anew"
        )
        return False

    async def closed(self) -> list[str]:
        """Partitions that no host runs any more."""
        group = await self._group()
        return sorted([*group.ended, *group.vanished], key=natural)

    async def look_for_failed(self, partitions: Set[str]) -> None:
        """Note which of them a live owner has reported as failed for good, in three heartbeats."""
        try:
            group, owners = await self._group(), await self._heartbeats()
        except UNREADABLE:
            return  # the supervisor reads the group, too, and logs the error
        reports = {}
        for partition in partitions:
            owner = group.owner_of(partition)
            if owner in owners and partition in owners[owner].report.failed_for_good:
                reports[partition, owner] = owners[owner]
        self._first_reports = {key: self._first_reports.get(key, found.beat) for key, found in reports.items()}
        self._reported = {
            partition: f"on {found.host}: {found.report.failing.get(partition, 'it fails again and again')}"
            for (partition, owner), found in reports.items()
            if found.beat >= self._first_reports[partition, owner] + 2
        }

    async def _run_by_others(self, group: GroupDocument, partitions: Set[str]) -> set[str]:
        """Those of the partitions that belong to other hosts that are alive.

        A host is alive once its heartbeat was seen to change: a killed one is still a member.
        """
        beats = {who: found.beat for who, found in (await self._heartbeats()).items() if who[0] != self._host}
        alive = {who for who, beat in beats.items() if beat > self._first_beats.setdefault(who, beat)}
        return {partition for partition in partitions if group.owner_of(partition) in alive}

    async def _heartbeats(self) -> dict[Incarnation, Heartbeat]:
        found = await read_heartbeats(self._store, self._layout)
        return {(heartbeat.host, heartbeat.incarnation): heartbeat for heartbeat, _ in found}

    async def _group(self) -> GroupDocument:
        return await read_group(self._store, self._layout) or GroupDocument.of()
