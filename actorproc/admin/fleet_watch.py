"""Reads the fleet of a processor: cheaply from its heartbeats, again and again, or exactly from all commits.

A look costs a conditional GET of the group, a LIST of the heartbeats, and a GET for each heartbeat that has changed.
Partitions without a live owner are read from their commits, a few with each look.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from actorproc.admin.fleet import Fleet, HostView, PartitionView
from actorproc.admin.fleet_sinks import SinkView
from actorproc.admin.partition_reader import Begin, PartitionReader
from actorproc.admin.verdict import Verdict, judge, judge_abandoned, judge_blocked
from actorproc.counts import Counts
from actorproc.errors import CorruptObject
from actorproc.group.assignment import Lease
from actorproc.group.heartbeat import Heartbeat, Incarnation, expiration_of, incarnation_of
from actorproc.group.membership import GroupDocument
from actorproc.group.reports import HostReport, PartitionReport
from actorproc.runtime.tasks import gather
from actorproc.sources.protocol import Source, list_partitions
from actorproc.storage.document import SharedDocument
from actorproc.storage.listing import documents
from actorproc.storage.names import ProcessorLayout, natural
from actorproc.storage.store import Store

HISTORY = 90
"""Samples of lag that are kept: at the default heartbeat interval of 13 s, some twenty minutes."""

_READ_PER_LOOK = 32  # partitions without a live owner whose commits are read with one look
_SILENT = 0.5  # share of the expiration without a heartbeat after which partitions are `silent`: two are missing


class FleetWatch:
    """Looks at one processor, and writes nothing.

    Args:
        expiration: seconds after which a silent host counts as dead that does not say itself.
    """

    def __init__(self, store: Store, layout: ProcessorLayout, expiration: float) -> None:
        self._store = store
        self._layout = layout
        self._expiration = expiration
        self._document = SharedDocument(store, layout.group, GroupDocument)
        self._group = GroupDocument.of()
        self._now = 0.0  # by the store's clock
        self._beats: dict[Incarnation, tuple[str, Heartbeat]] = {}  # tag and content
        self._giving_up: dict[str, HostReport] = {}  # of live hosts, if they gave partitions up
        self._ages: dict[Incarnation, float] = {}
        self._unheard: set[str] = set()  # partitions without a live owner
        self._read: dict[str, PartitionView] = {}  # partitions as their commits say
        self._counts: dict[str, Counts | None] = {}  # of the latest views
        self._to_read: deque[str] = deque()
        self.history: dict[str, deque[int | None]] = {}
        """Lags of each partition, the latest last; a sample for each heartbeat of its owner."""
        self.lags: deque[int | None] = deque(maxlen=HISTORY)
        """Lags of the processor, the latest last; a sample for each look that found a new heartbeat."""

    async def look(self, at: str | None = None) -> Fleet:
        """Read the changes since the last look.

        Args:
            at: a partition whose commits are read now if they are to be read at all, while others wait for their turn.

        Raises:
            CorruptObject: `group.json` is corrupt.
            StoreError: the store failed.
        """
        fresh = await self._refresh()
        leases = self._leases(self._group.leases or await documents(self._store, self._layout.checkpoints))
        heard = {who for who in self._beats if not self._is_silent(who)}
        self._unheard = {name for name in leases if self._group.owner_of(name) not in heard}
        await self._read_commits([name for name in leases if name in self._unheard], at)
        fleet = self._fleet(leases)
        self._note_history(fleet, fresh)
        return fleet

    async def read_all(self, source: Source | None = None, begin: Begin | None = None) -> Fleet:
        """Read the commits of all partitions, and their lags from an open source. See `PartitionReader`.

        Raises:
            CorruptObject: `group.json` is corrupt. (A partition's own trouble is its verdict.)
            StoreError, SourceError: the group, or the list of partitions, could not be read.
        """
        await self._refresh()
        names = {*await documents(self._store, self._layout.checkpoints), *self._group.leases}
        if source is not None:
            names |= (await list_partitions(source)).keys()
        leases = self._leases(names)
        reader = PartitionReader(self._store, self._layout, source, begin)
        self._read |= await gather(
            list(leases), lambda name: reader.read(name, closed=leases[name].closed is not None)
        )  # fmt: skip
        return self._fleet(leases)

    async def _refresh(self) -> set[Incarnation]:
        """Read the group and the changed heartbeats. Returns the hosts whose heartbeats are new."""
        self._group = await self._document.read() or GroupDocument.of()
        listing = await self._store.list(self._layout.hosts)
        entries = {who: entry for entry in listing.entries if (who := incarnation_of(entry.key))}
        self._now = listing.now
        self._ages = {who: listing.now - entry.modified for who, entry in entries.items()}
        new = [who for who, entry in entries.items() if who not in self._beats or self._beats[who][0] != entry.tag]
        found = await gather(new, lambda who: self._store.get(entries[who].key))
        self._beats = {who: beat for who, beat in self._beats.items() if who in entries}
        for who, stored in found.items():
            if stored is not None:
                try:
                    self._beats[who] = stored.tag, Heartbeat.from_json(entries[who].key, stored.body)
                except CorruptObject:
                    continue  # a host that runs writes it again
        self._giving_up = {
            who[0]: beat.report
            for who, (_, beat) in self._beats.items()
            if beat.report.abandoned and self._is_alive(who)
        }
        return set(new)

    def _leases(self, names: Iterable[str]) -> dict[str, Lease]:
        return {name: self._group.leases.get(name) or Lease(None, 0) for name in sorted(names, key=natural)}

    def _is_alive(self, who: Incarnation) -> bool:
        age = self._ages.get(who)
        return age is not None and age < expiration_of(who, self._expiration)

    def _is_silent(self, who: Incarnation) -> bool:
        age = self._ages.get(who)
        return age is None or age >= _SILENT * expiration_of(who, self._expiration)

    async def _read_commits(self, names: list[str], first: str | None) -> None:
        """Read the commits of a few of them, of `first` among them; all come round."""
        self._read = {name: view for name, view in self._read.items() if name in self._unheard}
        self._to_read = deque(name for name in self._to_read if name in self._unheard)
        queued = set(self._to_read)
        self._to_read.extend(name for name in names if name not in queued)
        if first is not None and first in self._to_read:
            self._to_read.remove(first)
            self._to_read.appendleft(first)
        now = [self._to_read.popleft() for _ in range(min(_READ_PER_LOOK, len(self._to_read)))]
        self._read.update(await gather(now, PartitionReader(self._store, self._layout).read))

    # Views

    def _fleet(self, leases: dict[str, Lease]) -> Fleet:
        views = {name: self._view(name, lease) for name, lease in leases.items()}
        self._counts = {name: view.counts for name, view in views.items()}
        return Fleet(
            processor=self._layout.processor, time=self._now, hosts=self._hosts(), partitions=views,
            wishes=self._group.wishes,
        )  # fmt: skip

    def _view(self, name: str, lease: Lease) -> PartitionView:
        report, verdict = self._judge(name, lease)
        view = self._read.get(name)
        if view is None:
            view = PartitionView(partition=name, state="unread" if name in self._unheard else None)
            view = view if report is None else replace(view, **_progress(report))
        elif view.verdict != "ok":
            verdict = Verdict(view.verdict, view.reason)
        if verdict.kind == "ended":
            view = replace(view, lag=0)
        since = None if verdict.since is None else int(verdict.since)
        return replace(
            view, owner=lease.owner, epoch=lease.epoch, next_owner=lease.next, verdict=verdict.kind,
            reason=verdict.reason, since=since, fault=verdict.fault,
            # Until an owner reports, or commits are read, those of the look before.
            counts=view.counts or self._counts.get(name), sinks=self._sinks(name, report),
            **({} if report is None else _activity(report)),
        )  # fmt: skip

    def _sinks(self, name: str, report: PartitionReport | None) -> tuple[SinkView, ...]:
        """The deliveries of a partition as its live owner reports them."""
        owner = self._group.owner_of(name)
        if report is None or owner is None:
            return ()
        errors = self._beats[owner][1].report.sink_errors
        return tuple(SinkView.of(sink, errors.get(sink.name)) for sink in report.sinks)

    def _judge(self, name: str, lease: Lease) -> tuple[PartitionReport | None, Verdict]:
        """How a partition is doing, and the report of its owner, if that is alive and has reported it."""
        owner = self._group.owner_of(name)
        beat = self._beats[owner][1] if owner in self._beats else None
        if owner is not None and beat is not None and beat.report.blocked and self._is_alive(owner):
            return beat.report.progress.get(name), judge_blocked(name, beat.host, beat.report)
        if owner is None or beat is None or self._is_silent(owner):
            return None, self._judge_unheard(name, lease, owner)
        report = beat.report.progress.get(name)
        if report is None or report.epoch != lease.epoch:
            moving = Verdict("moving", f"{lease.owner} has not reported it yet")
            return None, judge_abandoned(name, self._giving_up, None) or moving
        verdict = judge(report, beat.report.failing.get(name), beat.time, beat.report.max_process_time)
        if not verdict.is_bad:
            verdict = judge_abandoned(name, self._giving_up, report) or verdict
        if verdict.kind == "ok" and lease.next is not None:
            verdict = Verdict("moving", f"{lease.owner} hands it over to {lease.next or 'nobody'}")
        return report, verdict

    def _judge_unheard(self, name: str, lease: Lease, owner: Incarnation | None) -> Verdict:
        """The verdict about a partition without a live owner."""
        wishes = self._group.wishes
        if lease.closed:
            return Verdict(lease.closed)
        if owner is None and wishes.pauses(name):
            return Verdict(
                "paused", f"an operator has paused it{wishes.why_paused(name)}, until `actorproc resume`"
            )  # fmt: skip
        if (abandoned := judge_abandoned(name, self._giving_up, None)) is not None:
            return abandoned
        if owner is None:
            return Verdict("unowned", self._why_unowned())
        age = self._ages.get(owner)
        limit = expiration_of(owner, self._expiration)
        silent = "has no heartbeat" if age is None else f"has been silent for {age:.0f} s"
        why = f"{owner[0]} {silent}; a host that is alive takes over after {limit:g} s"
        return Verdict("silent", why, None if age is None else self._now - age)

    def _why_unowned(self) -> str:
        hosts = {host for host, _ in filter(self._is_alive, self._beats)}
        if not hosts:
            return "no host is running"
        wishes = self._group.wishes
        if hosts - set(wishes.drained):
            return "no host has its lease yet"
        drains = ", ".join(f"{host}{wishes.because(f'drain {host}')}" for host in sorted(hosts))
        return f"operators have drained every host that runs: {drains}; `actorproc release --host` ends that"

    def _hosts(self) -> list[HostView]:
        members = {(host, member.incarnation) for host, member in self._group.members.items()}
        shown = {*members, *(who for who in self._beats if who not in self._group.out and self._is_alive(who))}
        return [self._host(who, who in members) for who in sorted(shown)]

    def _host(self, who: Incarnation, in_group: bool) -> HostView:
        host, incarnation = who
        view = HostView(
            host=host, incarnation=incarnation, alive=self._is_alive(who), in_group=in_group,
            leaving=in_group and self._group.members[host].leaving,
            leases=len(self._group.owned.get(host, {})) if in_group else 0, age=self._ages.get(who),
        )  # fmt: skip
        if who not in self._beats:
            return view
        beat = self._beats[who][1]
        return replace(
            view, started=beat.started, pid=beat.pid, address=beat.address, release=beat.release or None,
            error=beat.report.error, error_since=beat.report.error_since,
            tables=tuple(SinkView.of(table, beat.report.sink_errors.get(table.name)) for table in beat.report.tables),
        )  # fmt: skip

    def _note_history(self, fleet: Fleet, fresh: set[Incarnation]) -> None:
        hosts = {host for host, _ in fresh}
        for view in fleet.partitions.values():
            if view.owner in hosts:
                self.history.setdefault(view.partition, deque(maxlen=HISTORY)).append(view.lag)
        if fresh:
            self.lags.append(fleet.lag)


def _progress(report: PartitionReport) -> dict[str, Any]:
    """How far the partition is by the report of its owner."""
    return {
        "sequence": report.sequence if report.sequence >= 0 else None,
        "lag": report.lag,
        "lag_seconds": report.lag_seconds,
        "counts": report.counts,
        "last_commit": report.last_commit,
    }


def _activity(report: PartitionReport) -> dict[str, Any]:
    return {
        "lag_seconds_end_to_end": report.seconds_end_to_end,
        "origin": report.origin,
        "owned_since": report.since,
        "state": report.state,
        "activity": report.activity,
        "activity_since": report.activity_since,
        "times": report.times,
        "retry": report.retry,
    }
