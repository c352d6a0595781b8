"""What must hold of members and leases, looked at whenever the store takes a write of them, and whenever a handler is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from actorproc.group.heartbeat import Incarnation
from actorproc.group.membership import GroupDocument

Report = Callable[[str], None]
Span = tuple[float, float]

CLOCKS = 1.025
"""How much faster than the world's a host's clock may run here: what was silent for so much less may count as dead."""

DECISION = 90.0
"""Seconds of running time between a host's look at the heartbeats and the last try at writing what it concluded."""

SETTLING = 1.0
"""Seconds after a pause within which a host may still run what it has lost: it has to notice first."""


class GroupChecks:
    """Heartbeats, group documents and handler calls of one group. All times: seconds by the clock of the world.

    Args:
        expire: seconds of silence after which a member is dead, by the clock of whoever judges.
        running_since: (host, time, seconds) -> the time since when that host had run for so many seconds at that time,
            pauses not counted.
        paused_since: (host, time) -> whether the host was paused at any moment since.
        broken: told what does not hold.
    """

    def __init__(
        self,
        expire: float,
        *,
        running_since: Callable[[str, float, float], float],
        paused_since: Callable[[str, float], bool],
        broken: Report,
    ) -> None:
        self.document = GroupDocument()
        self.seen: Counter[str] = Counter()
        self._expire = expire
        self._running_since = running_since
        self._paused_since = paused_since
        self._broken = broken
        self._beats: dict[Incarnation, list[float]] = {}
        self._left: set[Incarnation] = set()
        self._expired: dict[tuple[str, int], float] = {}  # (partition, epoch) -> when its owner was written out as dead

    def heartbeat_written(self, who: Incarnation, now: float) -> None:
        self._beats.setdefault(who, []).append(now)

    def heartbeat_deleted(self, who: Incarnation) -> None:
        self._left.add(who)

    def group_written(self, document: GroupDocument, now: float, sender: str, sent: float) -> None:
        """The document has been replaced. `sent`: when the request went out that did it."""
        before, self.document = self.document, document
        self._check_leases(before)
        for host, member in before.members.items():
            if host in document.members:  # stays, or a newer incarnation has replaced it
                continue
            who = (host, member.incarnation)
            if sender == host or who in self._left:
                self.seen["left"] += 1
                continue
            self.seen["expired"] += 1
            self._check_death(who, sender, sent)
            if now - max(self._beats.get(who, [now])) < self._expire / CLOCKS:
                continue  # it came back between the look and the write: nothing told it to stop yet
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
                self._broken(f"group: partition {partition} belongs to {after.owner}, who is no member")

    def _check_death(self, who: Incarnation, sender: str, sent: float) -> None:
        """Nobody may be written out who has not been silent for long enough when it was decided."""
        earliest = self._running_since(sender, sent, DECISION)
        beats = [*self._beats.get(who, []), sent]
        longest = max((b - a for a, b in pairwise(beats) if b >= earliest), default=sent)
        if longest < self._expire / CLOCKS:
            self._broken(f"group: {sender} wrote out {who[0]}, which had been silent for {longest:.1f} s at most")

    def handler_called(self, host: str, partition: str, epoch: int, now: float) -> None:
        """A handler gets a batch: nobody else may have been given this lease because its owner was taken for dead."""
        self.seen["calls"] += 1
        since = self._expired.get((partition, epoch))
        if since is not None and now > since and not self._paused_since(host, now - SETTLING):
            self._broken(
                f"group: {host} processes partition {partition} under epoch {epoch}, which was given away "
                f"{now - since:.1f} s ago because {host} was taken for dead: it trusted its lease for too long"
            )

    def unbalanced(self, hosts: set[str], partitions: set[str]) -> str | None:
        """Why the leases are not where they should be, with these hosts alive; None: they are."""
        document = self.document
        if set(document.members) != hosts:
            return f"members are {sorted(document.members)}, alive are {sorted(hosts)}"
        if missing := partitions - document.leases.keys():
            return f"partitions {sorted(missing)} are not in the group"
        if moving := [partition for partition, lease in document.leases.items() if lease.next is not None]:
            return f"partitions {sorted(moving)} are still to be handed over"
        counts = Counter(dict.fromkeys(hosts, 0))
        counts.update(str(lease.owner) for lease in document.leases.values())
        if set(counts) != hosts:
            return f"leases are with {dict(counts)}, alive are {sorted(hosts)}"
        if hosts and max(counts.values()) - min(counts.values()) > 1:
            return f"leases are uneven: {dict(counts)}"
        return None
