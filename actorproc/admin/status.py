"""How a processor is, read from its container: who runs what, how far it is, what the group would change next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from actorproc.admin.verdict import judge_given_up
from actorproc.counts import Counts
from actorproc.errors import CorruptObject, CredentialsExpired, SourceError, StoreError, locate
from actorproc.group.assignment import Closed, Lease, Plan, plan
from actorproc.group.heartbeat import Heartbeat, expiration_of, read_heartbeats
from actorproc.group.liveness import LivenessTracker
from actorproc.group.membership import GroupDocument, read_group
from actorproc.group.reports import HostReport, PartitionReport
from actorproc.group.wishes import NO_WISHES, Wishes
from actorproc.output.chain import OutputChain
from actorproc.records import Cursor
from actorproc.runtime.clock import Clock
from actorproc.runtime.tasks import gather
from actorproc.sources.protocol import End, Source, earliest_position, list_partitions
from actorproc.storage.listing import documents
from actorproc.storage.names import ProcessorLayout, natural
from actorproc.storage.store import Store

Begin = Callable[[str], Awaitable[str]]
"""The position at which the first owner of a partition begins."""

_OF_PARTITION = (CorruptObject, SourceError, StoreError)
"""What may ail one partition alone: a folder without rights is refused, a bad sector does not answer."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A host. Without a heartbeat `heartbeat_age` (seconds, by the store's clock) and what it says are None."""

    host: str
    incarnation: str
    alive: bool
    """Its heartbeat is younger than the expiration."""
    leases: int
    in_group: bool
    """False: it has a heartbeat, and nobody has written it in yet."""
    leaving: bool
    heartbeat_age: float | None = None
    started: float | None = None
    pid: int | None = None
    address: str | None = None
    release: str | None = None
    """Of the actorproc that it runs."""
    error: str | None = None
    """Why it cannot look at the group or the source, as its heartbeat says."""
    error_since: float | None = None
    """Seconds since 1970, by the host's clock."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """Lease and progress of a partition, and the end of its source. Times: seconds since 1970, by the hosts' clocks."""

    partition: str
    owner: str | None
    epoch: int
    next_owner: str | None
    closed: Closed | None
    """Why no host may run it: it has ended, or the source does not know it any more."""
    cursor: Cursor | None
    """What is committed; None: nothing ever was."""
    end: End | None
    """None: no source was asked, or it could not say."""
    lag: int | None
    """Sequences between what is committed, or else the first record, and the end; None: not known."""
    lag_bytes: int | None
    """Stored size of the records that are not committed; None: the source cannot tell."""
    lag_seconds: float | None
    """Age of the oldest record that is not committed, by its timestamp; 0 at the end; None: the source cannot tell."""
    last_commit: float | None
    output_files: int
    """Number of the next output file: how many there were."""
    totals: Counts
    begins_at: str | None = None
    """Position at which the first owner would begin, where that was asked for and nothing is committed."""
    error: str | None = None
    """Why its state, or its end, cannot be read, or why it fails on its owner (see `read_status`)."""
    fault: str | None = None
    """Of the error on its owner: "user" or "infrastructure"."""
    failing_since: float | None = None
    """If it fails on its owner."""


@dataclass(frozen=True, slots=True)
class ProcessorStatus:
    """A processor, as far as its container (and its source) tells."""

    processor: str
    members: Sequence[MemberStatus]
    partitions: Sequence[PartitionStatus]
    wishes: Wishes = NO_WISHES
    """What operators ask of the group."""

    @property
    def lag(self) -> int | None:
        """Of all partitions of which it is known; None: of none."""
        known = [partition.lag for partition in self.partitions if partition.lag is not None]
        return sum(known) if known else None

    @property
    def lag_bytes(self) -> int | None:
        """Of all partitions of which it is known; None: of none."""
        known = [partition.lag_bytes for partition in self.partitions if partition.lag_bytes is not None]
        return sum(known) if known else None

    @property
    def lag_seconds(self) -> float | None:
        """Of the partition that is furthest behind."""
        return max((p.lag_seconds for p in self.partitions if p.lag_seconds is not None), default=None)

    @property
    def lag_exact(self) -> bool:
        """False: `lag` leaves partitions out."""
        return all(partition.lag is not None for partition in self.partitions)


async def read_status(
    store: Store,
    layout: ProcessorLayout,
    processor: str,
    *,
    expiration: float,
    source: Source | None = None,
    begin: Begin | None = None,
) -> ProcessorStatus:
    """Read it, writing nothing. About three small requests per partition, many at once.

    Args:
        expiration: seconds after which a silent host counts as dead that does not say itself.
        source: an open source, asked for its partitions and their ends.
        begin: says where a partition begins of which nothing is committed. None: it is not asked, and the lag counts
            from the first record.

    Raises:
        CorruptObject: `group.json` is not what was written there. (A partition's own trouble is in its `error`.)
        StoreError, SourceError: the group, or the list of partitions, could not be read.
    """
    group = await read_group(store, layout) or GroupDocument.of()
    heartbeats = await read_heartbeats(store, layout)
    names = {*await documents(store, layout.checkpoints), *group.leases}
    if source is not None:
        names |= (await list_partitions(source)).keys()

    failing, troubles = _failing(group, heartbeats), _troubles(group, heartbeats)
    live = {
        beat.host: beat.report
        for beat, age in heartbeats
        if age < expiration_of((beat.host, beat.incarnation), expiration)
    }

    async def read(partition: str) -> PartitionStatus:
        lease = group.leases.get(partition) or Lease(None, 0)
        status = await _read_partition(store, layout, partition, lease, source, begin)
        if status.error is not None:
            return status
        if partition not in failing:
            return _with_given_up(status, group, live)
        trouble = troubles.get(partition, PartitionReport(0))
        return replace(status, error=failing[partition], fault=trouble.fault, failing_since=trouble.trouble_since)

    partitions = await gather(sorted(names, key=natural), read)
    members = _members(group, heartbeats, expiration)
    return ProcessorStatus(processor, members, list(partitions.values()), group.wishes)


async def read_lags(
    store: Store, layout: ProcessorLayout, partitions: Iterable[str], source: Source
) -> Mapping[str, PartitionStatus]:
    """The progress and the lag of partitions, by what is committed and what their open source has."""
    group = await read_group(store, layout) or GroupDocument.of()

    async def read(partition: str) -> PartitionStatus:
        lease = group.leases.get(partition) or Lease(None, 0)
        return await _read_partition(store, layout, partition, lease, source, None)

    return await gather(list(partitions), read)


def _failing(group: GroupDocument, heartbeats: Iterable[tuple[Heartbeat, float]]) -> dict[str, str]:
    """Partition -> why it fails, as its owner has reported in its latest heartbeat, and how long ago that was."""
    return {
        partition: f"on {beat.host}, {max(0.0, age):.0f} s ago: {error}"
        for beat, age in heartbeats
        for partition, error in beat.report.failing.items()
        if group.owner_of(partition) == (beat.host, beat.incarnation)
    }


def _troubles(group: GroupDocument, heartbeats: Iterable[tuple[Heartbeat, float]]) -> dict[str, PartitionReport]:
    """Partition in trouble -> the report of its owner."""
    return {
        partition: report
        for beat, _ in heartbeats
        for partition, report in beat.report.progress.items()
        if report.trouble is not None and group.owner_of(partition) == (beat.host, beat.incarnation)
    }


def _with_given_up(status: PartitionStatus, group: GroupDocument, live: Mapping[str, HostReport]) -> PartitionStatus:
    """With the trouble of a partition that a host has given up, and that its next owner has not processed yet."""
    owner = group.owner_of(status.partition)
    own = live[owner[0]].progress.get(status.partition) if owner is not None and owner[0] in live else None
    if own is not None and own.epoch != status.epoch:
        own = None
    found = judge_given_up(status.partition, live, own)
    if found is None:
        return status
    return replace(status, error=found.reason, fault=found.fault, failing_since=found.since)


async def _read_partition(
    store: Store, layout: ProcessorLayout, partition: str, lease: Lease, source: Source | None, begin: Begin | None
) -> PartitionStatus:
    end = lag = lag_bytes = lag_seconds = tip = last_commit = begins_at = None
    errors: list[str] = []
    try:
        end = await source.end(partition) if source is not None and lease.closed is None else None
    except CredentialsExpired:
        raise  # of the whole store
    except _OF_PARTITION as broken:
        errors.append(str(broken))
    try:
        chain = OutputChain(store, layout, partition)
        if (tip := await chain.tip()) is not None:
            last_commit = await chain.moved_at(tip)
        if tip is None and begin is not None:
            begins_at = await begin(partition)
        if source is not None and end is not None:
            cursor = tip.cursor if tip else await _first(source, partition, begins_at)
            if cursor is not None:
                lag = _lag(source, partition, cursor, end)
                lag_bytes = await _lag_bytes(source, partition, cursor, end)
                lag_seconds = await _lag_seconds(source, partition, cursor, end, store.clock)
        if tip is not None and tip.ended:
            lag, lag_bytes, lag_seconds = 0, 0, 0.0
    except CredentialsExpired:
        raise
    except _OF_PARTITION as broken:
        locate(broken, store.url)
        errors.append(str(broken))
    return PartitionStatus(
        partition=partition,
        owner=lease.owner,
        epoch=lease.epoch,
        next_owner=lease.next,
        closed="ended" if tip is not None and tip.ended else lease.closed,
        cursor=tip.cursor if tip else None,
        end=end,
        lag=lag,
        lag_bytes=lag_bytes,
        lag_seconds=lag_seconds,
        last_commit=last_commit,
        output_files=tip.number if tip else 0,
        totals=tip.totals if tip else Counts(),
        begins_at=begins_at,
        error="; ".join(errors) or None,
    )


async def _first(source: Source, partition: str, begins_at: str | None) -> Cursor | None:
    """Where a partition begins of which nothing is committed; None: the source does not know its first record."""
    begin = begins_at or await earliest_position(source, partition)
    return None if begin is None else Cursor(begin)


def _lag(source: Source, partition: str, cursor: Cursor, end: End) -> int | None:
    if source.reached(cursor, end):
        return 0
    done = cursor.sequence if cursor.sequence >= 0 else source.sequence_before(partition, cursor.position)
    return None if end.sequence is None or done is None else source.records_between(done, end.sequence)


async def _lag_bytes(source: Source, partition: str, cursor: Cursor, end: End) -> int | None:
    return 0 if source.reached(cursor, end) else await source.bytes_between(partition, cursor.position, end)


async def _lag_seconds(source: Source, partition: str, cursor: Cursor, end: End, clock: Clock) -> float | None:
    if source.reached(cursor, end):
        return 0.0
    oldest = await source.time_at(partition, cursor.position)
    return None if oldest is None else max(0.0, clock.wall() - oldest.timestamp())


def _members(
    group: GroupDocument, heartbeats: Iterable[tuple[Heartbeat, float]], expiration: float
) -> list[MemberStatus]:
    leases = Counter(lease.owner for lease in group.leases.values())
    found = {(beat.host, beat.incarnation): (beat, age) for beat, age in heartbeats}
    members = []
    for host, member in group.members.items():
        beat, age = found.pop((host, member.incarnation), (None, None))
        alive = age is not None and age < expiration_of((host, member.incarnation), expiration)
        status = MemberStatus(host, member.incarnation, alive, leases[host], in_group=True, leaving=member.leaving)
        members.append(_with_heartbeat(status, beat, age))
    for (host, incarnation), (beat, age) in found.items():
        # Else a crash left it, or it stayed when its host left.
        if (host, incarnation) not in group.out and age < expiration_of((host, incarnation), expiration):
            status = MemberStatus(host, incarnation, alive=True, leases=0, in_group=False, leaving=False)
            members.append(_with_heartbeat(status, beat, age))
    return sorted(members, key=lambda member: (member.host, member.incarnation))


def _with_heartbeat(member: MemberStatus, beat: Heartbeat | None, age: float | None) -> MemberStatus:
    if beat is None:
        return member
    return replace(
        member, heartbeat_age=age, started=beat.started, pid=beat.pid, address=beat.address,
        release=beat.release or None, error=beat.report.error, error_since=beat.report.error_since,
    )  # fmt: skip


async def next_plan(store: Store, layout: ProcessorLayout, *, expiration: float, source: Source | None = None) -> Plan:
    """The changes that a host would make if it looked at the group now for the first time, and why. Writes nothing.

    Hosts that have watched for longer know sooner that one of them is silent, and wait for `rebalance_delay` before
    they move live leases.
    """
    group = await read_group(store, layout) or GroupDocument.of()
    who = [(host, member.incarnation) for host, member in group.members.items()]
    watch = LivenessTracker(expiration)
    now = store.clock.monotonic()
    watch.observe(await store.list(layout.hosts), who, asked=now, answered=now)
    gone = {host: why for host, incarnation in who if (why := watch.why_dead((host, incarnation)))}
    return plan(
        group.members,
        group.leases,
        group.wishes,
        partitions=await list_partitions(source) if source is not None else {},
        joining=group.may_join(watch.joining(group.members)),
        gone=gone,
    )
