"""All hosts and partitions of a processor as its heartbeats report them: cheap enough to look once a second.

A look costs a conditional GET of the group, a LIST of the heartbeats, and a GET for each heartbeat that has changed.
Partitions without a live owner are read from their commits, a few with each look.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from actorproc.admin.verdict import CLOSED, WELL, Verdict, judge, judge_blocked, judge_given_up
from actorproc.counts import Counts
from actorproc.errors import ActorprocError, CorruptObject
from actorproc.group.assignment import Lease
from actorproc.group.heartbeat import Heartbeat, Incarnation, expiration_of, incarnation_of
from actorproc.group.membership import GroupDocument
from actorproc.group.reports import HostReport, PartitionReport, TimesReport
from actorproc.group.wishes import NO_WISHES, Wishes
from actorproc.output.chain import OutputChain
from actorproc.runtime.tasks import gather
from actorproc.storage.document import SharedDocument
from actorproc.storage.listing import documents
from actorproc.storage.names import ProcessorLayout, natural
from actorproc.storage.store import Store

HISTORY = 90
"""Samples of lag that are kept: at the default heartbeat interval of 13 s, some twenty minutes."""

_READ_PER_LOOK = 32  # partitions without a live owner whose commits are read with one look
_SILENT = 0.5  # share of the expiration without a heartbeat after which partitions are `silent`: two are missing
_NUMBERS = re.compile(r"\d+")


class PartitionView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A partition as the dashboard shows it. Times: seconds since 1970, by the hosts' clocks."""

    partition: str
    owner: str | None = None
    epoch: int = 0
    next_owner: str | None = None
    verdict: str = "ok"
    reason: str = ""
    since: int | None = None
    """Of the verdict."""
    fault: str | None = None
    """Of the verdict: "user" (handler, options, schema) or "infrastructure" (source, store, network)."""
    origin: str = ""
    owned_since: int | None = None
    state: str | None = None
    """Of its actor; `unread`: no host runs it, and its commits are not read yet."""
    sequence: int | None = None
    lag: int | None = None
    lag_seconds: float | None = None
    counts: Counts | None = None
    """Since the partition's first record. None: neither a host nor the commits have told them yet."""
    last_commit: int | None = None
    activity: str | None = None
    activity_since: int | None = None
    times: TimesReport | None = None
    retry: list[int | None] | None = None
    """First sequence, number of records, attempt, time of the next attempt."""

    @property
    def is_open(self) -> bool:
        """Whether a host may run it."""
        return self.verdict not in CLOSED


class HostView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A host. Without a heartbeat only `host`, `incarnation` and `leases` are known."""

    host: str
    incarnation: str
    alive: bool
    in_group: bool
    leaving: bool = False
    leases: int = 0
    age: float | None = None
    started: float | None = None
    pid: int | None = None
    release: str | None = None
    """Of the actorproc that it runs."""
    error: str | None = None
    error_since: float | None = None


class ErrorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One error, and the partitions that have it. Texts that differ in numbers only count as one."""

    reason: str
    verdict: str
    since: int | None
    partitions: list[str]


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """A processor at one moment."""

    processor: str
    time: float
    """By the store's clock."""
    hosts: list[HostView]
    partitions: dict[str, PartitionView]
    wishes: Wishes = Wishes()
    """What operators asked for: pauses, drains, placements."""

    @property
    def open(self) -> list[PartitionView]:
        """The partitions that a host may run."""
        return [view for view in self.partitions.values() if view.is_open]

    @property
    def lag(self) -> int:
        """The sum of the lags that are known."""
        return sum(view.lag or 0 for view in self.partitions.values())

    def errors(self) -> list[ErrorGroup]:
        """The reasons of all partitions that are not well, the most frequent first."""
        groups: dict[tuple[str, str], list[PartitionView]] = {}
        for view in self.partitions.values():
            if view.verdict not in {*WELL, "moving", "paused"}:
                groups.setdefault((view.verdict, _NUMBERS.sub("#", view.reason)), []).append(view)
        found = [_error_group(views) for views in groups.values()]
        return sorted(found, key=lambda group: -len(group.partitions))


def _error_group(views: list[PartitionView]) -> ErrorGroup:
    since = [view.since for view in views if view.since is not None]
    return ErrorGroup(
        reason=views[0].reason, verdict=views[0].verdict, since=min(since, default=None),
        partitions=sorted((view.partition for view in views), key=natural),
    )  # fmt: skip


class FleetWatch:
    """Looks at one processor again and again.

    Args:
        expiration: seconds after which a silent host counts as dead that does not say itself.
    """

    def __init__(self, store: Store, layout: ProcessorLayout, expiration: float) -> None:
        self._store = store
        self._layout = layout
        self._expiration = expiration
        self._group = SharedDocument(store, layout.group, GroupDocument)
        self._beats: dict[Incarnation, tuple[str, Heartbeat, float]] = {}  # tag, content, when it was written
        self._giving_up: dict[str, HostReport] = {}  # of live hosts, if they gave partitions up
        self._ages: dict[Incarnation, float] = {}
        self._read: dict[str, PartitionView] = {}  # from their commits
        self._counted: dict[str, PartitionView] = {}  # the latest views
        self._to_read: deque[str] = deque()
        self.history: dict[str, deque[int | None]] = {}
        """Lags of each partition, the latest last; a sample for each heartbeat of its owner."""
        self.lags: deque[int] = deque(maxlen=HISTORY)
        """Lags of the processor, the latest last; a sample for each look that found a new heartbeat."""

    async def look(self, at: str | None = None) -> Fleet:
        """Read the changes since the last look. Writes nothing.

        Args:
            at: a partition whose commits are read now if they are to be read at all, while others wait for their turn.

        Raises:
            CorruptObject: `group.json` is corrupt.
            StoreError: the store failed.
        """
        group = await self._group.read() or GroupDocument.of()
        now, fresh = await self._refresh_heartbeats()
        names = list(group.leases) or await documents(self._store, self._layout.checkpoints)
        leases = {name: group.leases.get(name) or Lease(None, 0) for name in sorted(names, key=natural)}
        heard = {who for who in self._beats if not self._is_silent(who)}
        await self._read_commits([name for name in leases if group.owner_of(name) not in heard], at)
        self._giving_up = {
            who[0]: beat.report
            for who, (_, beat, _) in self._beats.items()
            if beat.report.given_up and self._is_alive(who)
        }
        views = {
            name: self._with_counts(self._view(name, lease, group.owner_of(name), now))
            for name, lease in leases.items()
        }
        self._counted = views
        fleet = Fleet(
            processor=self._layout.processor, time=now, hosts=self._hosts(group), partitions=views, wishes=group.wishes
        )
        self._note_history(fleet, fresh)
        return fleet

    async def _refresh_heartbeats(self) -> tuple[float, set[Incarnation]]:
        """The store's clock, and the hosts whose heartbeats are new."""
        listing = await self._store.list(self._layout.hosts)
        entries = {who: entry for entry in listing.entries if (who := incarnation_of(entry.key))}
        self._ages = {who: listing.now - entry.modified for who, entry in entries.items()}
        new = [who for who, entry in entries.items() if who not in self._beats or self._beats[who][0] != entry.tag]
        found = await gather(new, lambda who: self._store.get(entries[who].key))
        self._beats = {who: beat for who, beat in self._beats.items() if who in entries}
        for who, stored in found.items():
            if stored is not None:
                try:
                    beat = Heartbeat.from_json(entries[who].key, stored.body)
                except CorruptObject:
                    continue  # a host that runs writes it again
                self._beats[who] = stored.tag, beat, entries[who].modified
        return listing.now, set(new)

    def _is_alive(self, who: Incarnation) -> bool:
        age = self._ages.get(who)
        return age is not None and age < expiration_of(who, self._expiration)

    def _is_silent(self, who: Incarnation) -> bool:
        age = self._ages.get(who)
        return age is None or age >= _SILENT * expiration_of(who, self._expiration)

    # Partitions without a live owner

    async def _read_commits(self, names: list[str], first: str | None) -> None:
        """Read the commits of a few of them, of `first` among them; all come round."""
        wanted = set(names)
        self._read = {name: view for name, view in self._read.items() if name in wanted}
        self._to_read = deque(name for name in self._to_read if name in wanted)
        queued = set(self._to_read)
        self._to_read.extend(name for name in names if name not in queued)
        if first is not None and first in self._to_read:
            self._to_read.remove(first)
            self._to_read.appendleft(first)
        now = [self._to_read.popleft() for _ in range(min(_READ_PER_LOOK, len(self._to_read)))]
        self._read.update(await gather(now, self._read_partition))

    async def _read_partition(self, name: str) -> PartitionView:
        try:
            chain = OutputChain(self._store, self._layout, name)
            tip = await chain.tip()
            moved = None if tip is None else await chain.moved_at(tip)
        except ActorprocError as error:
            return PartitionView(partition=name, verdict="unreadable", reason=str(error))
        if tip is None:
            return PartitionView(partition=name)
        return PartitionView(
            partition=name, sequence=tip.cursor.sequence if tip.cursor.sequence >= 0 else None,
            last_commit=None if moved is None else int(moved), counts=tip.totals,
        )  # fmt: skip

    # Views

    def _with_counts(self, view: PartitionView) -> PartitionView:
        """With the counts of the look before, while neither an owner nor a read of the commits has told them again."""
        before = self._counted.get(view.partition)
        return view if before is None or view.counts else msgspec.structs.replace(view, counts=before.counts)

    def _view(self, name: str, lease: Lease, owner: Incarnation | None, now: float) -> PartitionView:
        found = self._beats.get(owner) if owner else None
        beat = found[1] if found else None
        facts: dict[str, Any] = {
            "partition": name,
            "owner": lease.owner,
            "epoch": lease.epoch,
            "next_owner": lease.next,
        }
        if owner is not None and beat is not None and beat.report.blocked and self._is_alive(owner):
            known = beat.report.progress.get(name)
            verdict = judge_blocked(name, beat.host, beat.report)
            return PartitionView(**facts, **_verdict(verdict), **({} if known is None else _progress(known)))
        if owner is None or beat is None or self._is_silent(owner):
            seen = self._read.get(name) or PartitionView(partition=name, state="unread")
            if seen.verdict == "unreadable":
                verdict = Verdict("unreadable", seen.reason)
            elif lease.closed:
                verdict = Verdict(lease.closed)
                seen = msgspec.structs.replace(seen, lag=0 if lease.closed == "ended" else None)
            elif owner is None and self._wishes.pauses(name):
                why = self._wishes.why_paused(name)
                verdict = Verdict("paused", f"an operator has paused it{why}, until `actorproc resume`")
            else:
                verdict = self._orphan(owner, now)
            return msgspec.structs.replace(seen, **facts, **_verdict(verdict))
        report = beat.report.progress.get(name)
        if report is None or report.epoch != lease.epoch:
            moving = Verdict("moving", f"{lease.owner} has not reported it yet")
            return PartitionView(**facts, **_verdict(judge_given_up(name, self._giving_up, None) or moving))
        verdict = judge(report, beat.report.failing.get(name), beat.time, beat.report.max_process_time)
        if not verdict.is_bad:
            verdict = judge_given_up(name, self._giving_up, report) or verdict
        if verdict.kind == "ok" and lease.next is not None:
            verdict = Verdict("moving", f"{lease.owner} hands it over to {lease.next or 'nobody'}")
        return PartitionView(**facts, **_verdict(verdict), **_progress(report))

    @property
    def _wishes(self) -> Wishes:
        return NO_WISHES if self._group.current is None else self._group.current.wishes

    def _orphan(self, owner: Incarnation | None, now: float) -> Verdict:
        if owner is None:
            return Verdict("unowned", self._why_unowned())
        age = self._ages.get(owner)
        limit = expiration_of(owner, self._expiration)
        silent = "has no heartbeat" if age is None else f"has been silent for {age:.0f} s"
        why = f"{owner[0]} {silent}; a host that is alive takes over after {limit:g} s"
        return Verdict("silent", why, None if age is None else now - age)

    def _why_unowned(self) -> str:
        hosts = {host for host, _ in filter(self._is_alive, self._beats)}
        if not hosts:
            return "no host is running"
        if hosts - set(self._wishes.drained):
            return "no host has its lease yet"
        drains = ", ".join(f"{host}{self._wishes.because(f'drain {host}')}" for host in sorted(hosts))
        return f"operators have drained every host that runs: {drains}; `actorproc release --host` ends that"

    def _hosts(self, group: GroupDocument) -> list[HostView]:
        members = {(host, member.incarnation): member for host, member in group.members.items()}
        shown = {*members, *(who for who in self._beats if who not in group.out and self._is_alive(who))}
        return [self._host(who, group) for who in sorted(shown)]

    def _host(self, who: Incarnation, group: GroupDocument) -> HostView:
        host, incarnation = who
        member = group.members.get(host)
        in_group = member is not None and member.incarnation == incarnation
        found = self._beats.get(who)
        beat = found[1] if found else None
        return HostView(
            host=host, incarnation=incarnation, alive=self._is_alive(who), in_group=in_group,
            leaving=in_group and member is not None and member.leaving,
            leases=len(group.owned.get(host, {})) if in_group else 0, age=self._ages.get(who),
            started=beat.started if beat else None, pid=beat.pid if beat else None,
            release=(beat.release or None) if beat else None, error=beat.report.error if beat else None,
            error_since=beat.report.error_since if beat else None,
        )  # fmt: skip

    def _note_history(self, fleet: Fleet, fresh: set[Incarnation]) -> None:
        hosts = {host for host, _ in fresh}
        for view in fleet.partitions.values():
            if view.owner in hosts:
                self.history.setdefault(view.partition, deque(maxlen=HISTORY)).append(view.lag)
        if fresh:
            self.lags.append(fleet.lag)


def _verdict(verdict: Verdict) -> dict[str, Any]:
    since = None if verdict.since is None else int(verdict.since)
    return {"verdict": verdict.kind, "reason": verdict.reason, "since": since, "fault": verdict.fault}


def _progress(report: PartitionReport) -> dict[str, Any]:
    retry = report.retry
    return {
        "origin": report.origin,
        "owned_since": report.since,
        "state": report.state,
        "sequence": report.sequence if report.sequence >= 0 else None,
        "lag": report.lag,
        "lag_seconds": report.lag_seconds,
        "counts": None if report.totals is None else Counts(*msgspec.structs.astuple(report.totals)),
        "last_commit": report.last_commit,
        "activity": report.activity,
        "activity_since": report.activity_since,
        "times": report.times,
        "retry": None if retry is None else [retry.first, retry.records, retry.attempt, retry.next_at],
    }


def changed(before: Mapping[str, PartitionView], after: Mapping[str, PartitionView]) -> Iterable[PartitionView]:
    """The partitions whose views differ."""
    return [view for name, view in after.items() if before.get(name) != view]
