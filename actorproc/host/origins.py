"""Why each partition came to this host, from successive views of the group."""

from __future__ import annotations

from collections.abc import Mapping

from actorproc.group.assignment import Lease, Member, Move
from actorproc.group.group import GroupView
from actorproc.group.wishes import NO_WISHES


class Origins:
    """Remembers the latest view of the group, and explains the leases that the next one brings."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._members: Mapping[str, Member] = {}
        self._leases: Mapping[str, Lease] = {}
        self._before: tuple[Mapping[str, Member], Mapping[str, Lease]] = ({}, {})
        self._moves: dict[str, Move] = {}
        self._wishes = NO_WISHES

    def note(self, view: GroupView) -> None:
        """The group was looked at."""
        self._before = self._members, self._leases
        self._members, self._leases = view.members, view.leases
        self._wishes = view.wishes
        self._moves = {move.partition: move for move in view.moves}

    def is_takeover(self, partition: str) -> bool:
        """Whether the former owner was no longer in the group, and had not left it in good order."""
        members, leases = self._before
        former = leases.get(partition)
        if former is None or former.owner is None or former.owner in self._members or former.owner == self._host:
            return False
        return former.owner not in members or not members[former.owner].leaving

    def of(self, partition: str) -> str:
        """Why this host has the lease since the latest view."""
        move = self._moves.get(partition)
        if move is not None and move.target == self._host:
            return "it had no owner" if move.source is None else move.reason
        leases = self._before[1]
        former = leases.get(partition)
        if former is None:
            return "" if not leases else "it is a new partition"
        if former.owner is None:
            return "it had no owner"
        if former.owner == self._host:
            return f"{self._host} had it before"
        if former.owner not in self._members:
            return f"{former.owner} is no longer in the group"
        why = self._why_handed_over(partition, former.owner, planned=former.next == self._host)
        return f"{former.owner} handed it over{why and f': {why}'}"

    def _why_handed_over(self, partition: str, owner: str, *, planned: bool) -> str:
        """Empty if this host does not know: the plan may be younger than its look before, or the owner gave it up."""
        if any(owner in group and group[owner].leaving for group in (self._before[0], self._members)):
            return f"{owner} is leaving"
        if self._wishes.placed.get(partition) == self._host:
            return f"it is placed on {self._host}"
        if owner in self._wishes.drained:
            return f"{owner} is drained"
        return f"to even the {'loads' if self._wishes.weights else 'counts'}" if planned else ""
