"""Liveness of hosts, from listings of heartbeats and this host's own clock. Clocks of hosts are never compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from actorproc.group.heartbeat import Incarnation, expiration_of, incarnation_of
from actorproc.storage.backend import Listing

_TICK = 1.0  # seconds: how coarse a store's own clock may be, in LastModified and in Date


@dataclass(slots=True)
class _Seen:
    """A heartbeat as observed from here. `since`: when the reply that first showed this tag had come."""

    tag: str | None
    since: float
    age: float
    """Seconds, by the store's own clock, at the latest listing that showed it."""
    modified: float
    changed: bool
    """Whether it was seen to change: from then on only this host's own clock counts."""


class LivenessTracker:
    """Remembers when each heartbeat changed.

    Silence is counted from after the reply that first showed a tag until before the request that still shows it. So it
    is never overestimated, however slow a request is, and however long this host is stopped in the middle of one.
    A heartbeat that is missing from a listing counts as silent only: listings of some stores skip objects that are
    being rewritten, and a host that stops in good order removes itself from the group.

    Args:
        expire: seconds of silence after which a member is dead, if its incarnation names no expiration.
    """

    def __init__(self, expire: float) -> None:
        self._expire = expire
        self._seen: dict[Incarnation, _Seen] = {}
        self.listed: set[Incarnation] = set()
        """Incarnations whose heartbeats are in the latest listing."""
        self._asked = float("-inf")

    def observe(self, listing: Listing, members: Iterable[Incarnation], *, asked: float, answered: float) -> None:
        """Record a listing. `members` should be in it. `asked`, `answered`: times on this host's clock."""
        before, self._seen, self._asked = self._seen, {}, asked
        for entry in listing.entries:
            who, age = incarnation_of(entry.key), listing.now - entry.modified
            if who is None:
                continue
            old = before.get(who)
            # The time, too: a tag may be a hash of the content, and an earlier heartbeat may land after later ones.
            if old is None or (old.tag, old.modified) != (entry.tag, entry.modified):
                self._seen[who] = _Seen(entry.tag, answered, age, entry.modified, old is not None)
            else:
                old.age = age
                self._seen[who] = old
        self.listed = set(self._seen)
        for who in members:
            if who not in self._seen:
                self._seen[who] = before.get(who) or _Seen(None, answered, 0.0, 0.0, changed=False)

    def silence(self, who: Incarnation) -> float:
        """Seconds for which the heartbeat has certainly not changed."""
        seen = self._seen.get(who)
        return 0.0 if seen is None else max(0.0, self._asked - seen.since)

    def why_dead(self, who: Incarnation) -> str | None:
        """Why a member is dead, as a clause; None while it may live."""
        seen, silent, expire = self._seen.get(who), self.silence(who), self._expire_of(who)
        if silent > expire:
            return f"{who[0]} has not renewed for {silent:.0f} s"
        if seen is not None and not seen.changed and seen.age > 2 * expire + _TICK:
            return f"{who[0]} has not renewed for {seen.age:.0f} s by the store's clock"
        return None

    def alive(self, who: Incarnation) -> bool:
        """Whether it certainly was alive a short while ago. Only then do other hosts add it to the group."""
        recent = self._expire_of(who) / 2
        if who not in self.listed or self.silence(who) > recent:
            return False
        seen = self._seen[who]
        return seen.changed or seen.age <= recent + _TICK

    def joining(self, members: Iterable[str]) -> dict[str, str]:
        """Hosts that are alive and not among `members`, each with its latest incarnation."""
        known = set(members)
        alive = [who for who in self.listed if who[0] not in known and self.alive(who)]
        return dict(sorted(alive, key=lambda who: (who[0], self._seen[who].modified, who[1])))

    def orphaned(self, members: Iterable[Incarnation]) -> list[Incarnation]:
        """Heartbeats of no member that were not renewed for a long time: crashed hosts have left them."""

        def is_orphaned(who: Incarnation) -> bool:
            expire = self._expire_of(who)
            return self.silence(who) > expire and self._seen[who].age > 10 * expire + _TICK

        return sorted(filter(is_orphaned, self.listed - set(members)))

    def _expire_of(self, who: Incarnation) -> float:
        return expiration_of(who, self._expire)
