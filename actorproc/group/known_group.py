"""The group document as this host read it last, and how long its members and moves have been unchanged."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from actorproc.config.settings import Settings
from actorproc.group.assignment import Lease, Member, plan
from actorproc.group.heartbeat import HeartbeatWriter
from actorproc.group.membership import GroupDocument
from actorproc.group.wishes import Wishes
from actorproc.runtime.clock import Clock


class KnownGroup:
    """One host's copy of the group document. Times are those of the host's own clock."""

    def __init__(self, host: str, heartbeat: HeartbeatWriter, settings: Settings, clock: Clock) -> None:
        self._host = host
        self._heartbeat = heartbeat
        self._settings, self._clock = settings, clock
        self._mine: dict[str, Lease] | None = None
        self._quiet_since = clock.monotonic()
        self._marks: dict[str, tuple[Lease, float]] = {}  # leases with a `next`, and when this was first seen
        self.document = GroupDocument.of()

    def adopt(self, document: GroupDocument) -> bool:
        """Replace the document by a newer one. Returns whether the members have changed."""
        before, self.document, self._mine = self.document, document, None
        now, seen = self._clock.monotonic(), self._marks
        self._marks = {}
        for partition, lease in document.leases.items():
            if lease.next is not None:
                old = seen.get(partition)
                self._marks[partition] = old if old is not None and old[0] == lease else (lease, now)
        if document.members == before.members:
            return False
        self._quiet_since = now
        return True

    @property
    def is_in(self) -> bool:
        """Whether this incarnation of the host is a member."""
        member = self.document.members.get(self._host)
        return member is not None and member.incarnation == self._heartbeat.incarnation

    @property
    def own(self) -> Mapping[str, Lease]:
        """Leases of this host, by partition."""
        if self._mine is None:
            leases = self.document.leases.items() if self.is_in else ()
            self._mine = {partition: lease for partition, lease in leases if lease.owner == self._host}
        return self._mine

    @property
    def state(self) -> tuple[Mapping[str, Member], Mapping[str, Lease], Wishes]:
        """Members, leases and wishes, from which a plan is made."""
        return self.document.members, self.document.leases, self.document.wishes

    def late_handovers(self, now: float) -> dict[str, str]:
        """Partitions whose owners should have handed them over by now, each with the reason to take it."""
        patience = self._settings.max_handoff_time + self._settings.lease_acquire_interval
        return {
            partition: f"{lease.owner} has not handed it over for {now - since:.0f} s"
            for partition, (lease, since) in self._marks.items()
            if now - since > patience
        }

    @property
    def rebalance_in(self) -> float:
        """Seconds until the members have been the same for `rebalance_delay`, and leases may move."""
        return max(0.0, self._quiet_since + self._settings.rebalance_delay - self._clock.monotonic())

    def awaits_rebalance(self, partitions: Mapping[str, Collection[str]]) -> bool:
        """Whether leases will move as soon as they may."""
        return self.rebalance_in > 0 and plan(*self.state, partitions=partitions, may_move=True).changed
