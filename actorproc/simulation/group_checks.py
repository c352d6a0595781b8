"""Invariants of members and leases, checked at each write and at each call of a handler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from actorproc.group.format_versions import highest_of
from actorproc.group.heartbeat import Incarnation
from actorproc.group.membership import GroupDocument

Report = Callable[[str], None]

CLOCKS = 1.025
"""Factor by which a host's clock may run faster than the world's; it shortens the silence of a dead host."""

DECISION = 90.0
"""Seconds of running time between a host's read of the heartbeats and the last attempt to write the change."""

SETTLING = 1.0
"""Seconds after a pause in which a host may still process partitions that it lost, until it notices."""


class GroupChecks:
    """Checks heartbeats, group documents and handler calls. All times are seconds of the world's clock.

    Args:
        expire: seconds of silence after which a member is dead, by the clock of the host that decides.
        broken: called with each invariant that does not hold.
    """

    def __init__(self, expire: float, broken: Report) -> None:
        self.document = GroupDocument.of()
        self.seen: Counter[str] = Counter()
        self._expire = expire
        self._broken = broken
        self._beats: dict[Incarnation, list[float]] = {}
        self._left: set[Incarnation] = set()
        self._pauses: dict[str, list[list[float]]] = {}
        self._expired: dict[tuple[str, int], float] = {}  # (partition, epoch) -> when its owner was removed as dead

    def paused(self, host: str, pause: list[float]) -> None:
        """A process of `host` is paused from `pause[0]` to `pause[1]`, which may be set later."""
        self._pauses.setdefault(host, []).append(pause)

    def heartbeat_written(self, who: Incarnation, now: float) -> None:
        self._beats.setdefault(who, []).append(now)

    def heartbeat_deleted(self, who: Incarnation) -> None:
        self._left.add(who)

    def group_written(self, document: GroupDocument, now: float, sender: str, sent: float) -> None:
        """The group document was replaced by a request that was sent at `sent`."""
        before, self.document = self.document, document
        self._check_leases(before)
        self._check_wishes(before)
        self._check_formats(before)
        for host, member in before.members.items():
            if host in document.members:  # it stays, or a newer incarnation replaced it
                continue
            who = (host, member.incarnation)
            if sender == host or who in self._left:
                self.seen["left"] += 1
                continue
            self.seen["expired"] += 1
            self._check_death(who, sender, sent)
            if now - max(self._beats.get(who, [now])) < self._expire / CLOCKS:
                continue  # it renewed between the read and the write, so it does not know yet
            for partition, lease in before.leases.items():
                if lease.owner == host:
                    self._expired[partition, lease.epoch] = now

    def _check_leases(self, before: GroupDocument) -> None:
        for partition, lease in before.leases.items():
            after = self.document.leases.get(partition)
            if after is None:
                self._broken(f"group: partition {partition} has vanished")
                continue
            self.seen["moves"] += after.owner != lease.owner
            was, now = before.members.get(lease.owner or ""), self.document.members.get(after.owner or "")
            same = (
                lease.owner == after.owner
                and was is not None
                and now is not None
                and was.incarnation == now.incarnation
            )
            if after.epoch < lease.epoch or (after.owner is not None and not same and after.epoch == lease.epoch):
                self._broken(f"group: partition {partition} went from {lease} to {after} without a new epoch")
            if after.owner is not None and after.owner not in self.document.members:
                self._broken(f"group: partition {partition} belongs to {after.owner}, which is no member")

    def _check_wishes(self, before: GroupDocument) -> None:
        """No host gets a partition that is paused, and a drained host gets none."""
        wishes = self.document.wishes
        for partition, lease in self.document.leases.items():
            was = before.leases.get(partition)
            self.seen["paused"] += was is not None and was.owner is not None and lease.owner is None
            if lease.owner is None or (was is not None and was.owner == lease.owner):
                continue
            if wishes.paused or partition in wishes.paused_partitions:
                self._broken(f"group: {lease.owner} gets partition {partition}, which is paused")
            if lease.owner in wishes.drained:
                self._broken(f"group: {lease.owner} gets partition {partition}, and is drained")

    def _check_formats(self, before: GroupDocument) -> None:
        """Every member reads the format that the group writes, and the group never goes back to an earlier format."""
        document = self.document
        self.seen["formats"] += document.writes > before.writes > 1
        if document.writes < before.writes:
            self._broken(f"group: it writes format {document.writes} after {before.writes}")
        for host, member in document.members.items():
            if highest_of(member.incarnation) < document.writes:
                self._broken(f"group: it writes format {document.writes}, which its member {host} does not read")

    def _check_death(self, who: Incarnation, sender: str, sent: float) -> None:
        """A member may be removed only if it was silent for long enough when that was decided."""
        earliest = self._running_since(sender, sent, DECISION)
        beats = [*self._beats.get(who, []), sent]
        longest = max((b - a for a, b in pairwise(beats) if b >= earliest), default=sent)
        if longest < self._expire / CLOCKS:
            self._broken(f"group: {sender} removed {who[0]}, which had been silent for {longest:.1f} s at most")

    def handler_called(self, host: str, partition: str, epoch: int, now: float) -> None:
        """A handler got a batch: its host must not have lost the lease by being taken for dead."""
        self.seen["calls"] += 1
        since = self._expired.get((partition, epoch))
        if (
            since is not None
            and now > since
            and not any(until > now - SETTLING for _, until in self._pauses.get(host, []))
        ):
            self._broken(
                f"group: {host} processes partition {partition} under epoch {epoch}, which was given away "
                f"{now - since:.1f} s ago because {host} was taken for dead: it trusted its lease for too long"
            )

    def _running_since(self, host: str, at: float, seconds: float) -> float:
        """The time since which `host` had run for `seconds` at time `at`, without its pauses."""
        for begin, until in reversed(self._pauses.get(host, [])):
            if begin < at:
                ran = max(0.0, at - until)
                if ran >= seconds:
                    break
                at, seconds = begin, seconds - ran
        return at - seconds

    def unbalanced(self, lives: set[Incarnation], partitions: set[str]) -> str | None:
        """Why the leases are not spread evenly over these processes of hosts; None if they are.

        With weights, hosts share the load, and may have different counts.
        """
        document, hosts = self.document, {host for host, _ in lives}
        if (members := {(host, member.incarnation) for host, member in document.members.items()}) != lives:
            return f"members are {sorted(members)}, alive are {sorted(lives)}"
        if missing := partitions - document.leases.keys():
            return f"partitions {sorted(missing)} are not in the group"
        if moving := [partition for partition, lease in document.leases.items() if lease.next is not None]:
            return f"partitions {sorted(moving)} are still to be handed over"
        counts = Counter(dict.fromkeys(hosts, 0))
        counts.update(str(lease.owner) for lease in document.leases.values() if lease.closed is None)
        if set(counts) != hosts:
            return f"leases are with {dict(counts)}, alive are {sorted(hosts)}"
        if hosts and not document.wishes.weights and max(counts.values()) - min(counts.values()) > 1:
            return f"leases are uneven: {dict(counts)}"
        return None
