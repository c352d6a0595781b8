"""Assigns partitions to hosts: a pure function from members and leases to a plan, with a reason for each move."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from actorproc.group.levelling import Load, steps
from actorproc.group.wishes import NO_WISHES, Wishes

NOBODY = ""
"""The `next` of a lease whose owner gives it up, and no host gets it."""


class Member(msgspec.Struct, frozen=True):
    """A host in the group. Its leases belong to this incarnation; a later one does not inherit them."""

    incarnation: str
    leaving: bool = False


Closed = Literal["ended", "vanished"]
"""- `ended`: all that there ever will be is committed, and its checkpoint says so. For good.
- `vanished`: the source does not know it any more, and nothing follows it. Until it is listed again, or a partition
  that follows it.
"""


class Lease(NamedTuple):
    """The right to run a partition. `epoch` grows with each change of owner.

    `next` is the host to hand it over to, or `NOBODY`.
    `closed` is why no host may run it now; such a lease has no owner.
    """

    owner: str | None
    epoch: int
    next: str | None = None
    closed: Closed | None = None


class Move(NamedTuple):
    """A lease that changes, and why.

    `target` gets the lease now if `source` is dead, else at the hand-over. None: there is no host to take it. `target`
    equal to `source`: a planned move is called off.
    """

    partition: str
    source: str | None
    target: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The group as it should be, and the moves that lead there."""

    members: dict[str, Member]
    leases: dict[str, Lease]
    moves: list[Move]
    changed: bool
    """Whether members or leases differ from those before the plan."""
    wishes: Wishes = NO_WISHES


def plan(
    members: Mapping[str, Member],
    leases: Mapping[str, Lease],
    wishes: Wishes = NO_WISHES,
    *,
    partitions: Mapping[str, Collection[str]] = {},
    joining: Mapping[str, str] | None = None,
    leaving: Collection[str] = (),
    gone: Mapping[str, str] | None = None,
    ready: Mapping[str, str] | None = None,
    may_move: bool = True,
) -> Plan:
    """The changes after which every partition has one live owner, and lease counts of hosts differ by at most one.

    Wishes go before balance: a paused partition has no owner, a drained host has no lease, and a placed partition is on
    its host while this is a member; the other leases are spread as evenly as that allows.

    The plan is deterministic: equal arguments give equal plans, in any order. It is sticky: as few leases move as
    possible, and none if the counts are even, so the plan of a plan is empty. Leases without a live owner are given
    away at once. Those of live owners get a `next`, and change hands when they are `ready`.

    Args:
        partitions: of the source: name -> parents. New ones are added once their parents have ended. Leases of
            unlisted partitions stay: another host may know more. The list must be read after the leases, see `begins`.
        joining: host -> incarnation that becomes a member, and replaces an older incarnation of the host.
        leaving: members that give all their leases away, also if `may_move` is false.
        gone: member to remove -> why, a clause such as "b is dead".
        ready: partition -> why its lease may change hands now, if a move is planned for it.
        may_move: whether leases of live owners that stay may move, for the sake of balance.
    """
    gone, ready = gone or {}, ready or {}
    now = {host: member for host, member in members.items() if host not in gone}
    now.update((host, replace(now[host], leaving=True)) for host in leaving if host in now)
    now.update((host, Member(incarnation)) for host, incarnation in (joining or {}).items())
    stays = {host for host in now if host in members and members[host].incarnation == now[host].incarnation}
    hosts = [host for host, member in now.items() if not (member.leaving or host in wishes.drained)]
    wanted = _WeightedTargets(hosts, wishes.weights) if wishes.weights else _Targets(hosts)

    table = dict(leases)
    table.update((partition, Lease(None, 0)) for partition in begins(partitions, leases))
    table.update((partition, leases[partition]._replace(closed=None)) for partition in returns(partitions, leases))
    for partition in sorted(table):
        owner, _, following, closed = table[partition]
        if closed is None and not wishes.pauses(partition):
            wish = wishes.placed.get(partition) if may_move or owner not in stays else None
            wanted.note(partition, owner if owner in stays else None, following, wish)
    held = wanted.held()
    if may_move:
        wanted.level()
    wanted.fill()

    after: dict[str, Lease] = {}
    moves: list[Move] = []
    for partition, lease in table.items():
        owner, epoch, following, closed = lease
        target = wanted.target.get(partition)
        if closed is not None:
            after[partition] = lease
            continue
        if owner is None or owner not in stays:
            new = Lease(target, epoch + 1) if target else Lease(None, epoch)
            why = "it has no owner" if owner is None else gone.get(owner, f"{owner} started anew")
        elif partition in ready and target != owner:
            new = Lease(target, epoch + 1) if target else Lease(None, epoch)
            why = ready[partition]
        elif target is None and not now[owner].leaving:
            new = Lease(owner, epoch, NOBODY)
            why = "it is paused" if wishes.pauses(partition) else f"{owner} is drained"
        elif target is None or target == owner:
            new = Lease(owner, epoch)
            why = "the counts are even without it" if following in wanted.hosts else f"{following} cannot take it"
        else:
            new = Lease(owner, epoch, target)
            why = _why_moved(partition, owner, target, now[owner].leaving, wishes, held)
        if partition in leases or new.owner:
            after[partition] = new
        if new != lease:
            moves.append(Move(partition, owner, new.owner if new.next is None else new.next or None, why))
    changed = now != dict(members) or after != dict(leases)
    return Plan(now, after, sorted(moves, key=lambda move: move.partition), changed, wishes)


def _why_moved(partition: str, owner: str, target: str, leaving: bool, wishes: Wishes, held: Mapping[str, str]) -> str:
    if leaving or owner in wishes.drained:
        return f"{owner} is {'leaving' if leaving else 'drained'}"
    if wishes.placed.get(partition) == target:
        return f"it is placed on {target}"
    return f"{owner} holds {held[owner]}, {target} holds {held[target]}"


def begins(partitions: Mapping[str, Collection[str]], leases: Mapping[str, Lease]) -> list[str]:
    """The listed partitions that get their first lease: those whose parents have ended, or were never there.

    The list must be read after the leases: an older one may name a partition whose children run already, because it has
    ended and is forgotten. See tests/protocol/split_model.py.
    """

    def is_over(parent: str) -> bool:
        return leases[parent].closed == "ended" if parent in leases else parent not in partitions

    return [name for name, parents in partitions.items() if name not in leases and all(map(is_over, parents))]


def returns(partitions: Mapping[str, Collection[str]], leases: Mapping[str, Lease]) -> list[str]:
    """The vanished partitions that are run again: those that are listed, or that a listed partition follows."""
    named = {*partitions, *(parent for parents in partitions.values() for parent in parents)}
    return [name for name, lease in leases.items() if lease.closed == "vanished" and name in named]


def closed(leases: Mapping[str, Lease], partitions: Collection[str], why: Closed) -> dict[str, Lease]:
    """The leases after these partitions are closed."""
    return {**leases, **{name: Lease(None, leases[name].epoch, closed=why) for name in partitions}}


def reweighted(
    members: Mapping[str, Member], leases: Mapping[str, Lease], wishes: Wishes, weights: Mapping[str, int]
) -> Plan:
    """The plan by other weights."""
    return replace_fields(plan(members, leases, replace(wishes, weights=weights)), changed=True)


def abandon(
    members: Mapping[str, Member], leases: Mapping[str, Lease], wishes: Wishes, partition: str, reason: str
) -> Plan | None:
    """The plan by which the lease of `partition` goes to another host at once. None: there is no other host.

    It is not placed on its host any more.

    If that makes the counts uneven, a lease of that host comes back in exchange. Otherwise the next balance might bring
    the same partition back.
    """
    owner, epoch, following, _ = leases[partition]
    counts = Counter(lease.next or lease.owner for lease in leases.values() if lease.closed is None)
    if wishes.pauses(partition):
        released = Lease(None, epoch)
        return Plan(
            dict(members), {**leases, partition: released}, [Move(partition, owner, None, reason)], True, wishes
        )
    others = sorted(
        host for host, member in members.items() if not (host == owner or member.leaving or host in wishes.drained)
    )
    if not others:
        return None
    target = following if following in others else min(others, key=lambda host: counts[host])
    after = {**leases, partition: Lease(target, epoch + 1)}
    moves = [Move(partition, owner, target, reason)]
    if target != following and counts[target] + 1 > counts[owner]:
        movable = (
            name
            for name, lease in sorted(leases.items())
            if lease.owner == target
            and lease.next is None
            and name not in wishes.placed
            and owner not in wishes.drained
        )
        if (exchanged := next(movable, None)) is not None:
            after[exchanged] = leases[exchanged]._replace(next=owner)
            moves.append(Move(exchanged, target, owner, f"in exchange for {partition}"))
    placed = {name: host for name, host in wishes.placed.items() if name != partition}
    return Plan(dict(members), after, moves, changed=True, wishes=replace(wishes, placed=placed))


class _Targets:
    """The host for each lease: as it is (`note`), without excess leases (`level`), then with all (`fill`)."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self.hosts = frozenset(hosts)
        self.target: dict[str, str] = {}
        self.counts: dict[str, int] = dict.fromkeys(sorted(self.hosts), 0)
        self._owner: dict[str, str] = {}  # live owners that do not leave
        self._of: dict[str, list[str]] = {host: [] for host in self.counts}
        self._free: list[str] = []
        self._placed: dict[str, int] = {}  # host -> leases that are placed there

    def held(self) -> dict[str, str]:
        """What each host has, for the reasons of moves."""
        return {host: str(count) for host, count in self.counts.items()}

    def note(self, partition: str, owner: str | None, following: str | None, wish: str | None) -> None:
        """Add a lease as it is. `owner`: its live owner. `wish`: the host that an operator wants for it."""
        if owner is not None and owner in self.hosts:
            self._owner[partition] = owner
        if wish in self.hosts:
            self.target[partition] = wish
            self.counts[wish] += 1
            self._placed[wish] = self._placed.get(wish, 0) + 1
            return
        target = following if following in self.hosts else self._owner.get(partition)
        if target is None:
            self._free.append(partition)
        else:
            self._place(partition, target)

    def level(self) -> None:
        """Take the leases beyond its share from each host. The larger shares go to the hosts with most leases."""
        owned = Counter(self._owner.values())
        by_load = sorted(self.counts, key=lambda host: (-self.counts[host], -owned[host], host))
        share = self._shares(by_load)
        taken = []
        for host in by_load:
            excess = self.counts[host] - share[host]
            if excess > 0:
                # Leases that have not arrived here go first: to send them elsewhere costs no second move.
                arriving = [p for p in self._of[host] if self._owner.get(p) != host]
                settled = [p for p in self._of[host] if self._owner.get(p) == host]
                taken += (settled + arriving)[-excess:]
        for partition in taken:
            self.counts[self.target.pop(partition)] -= 1
        for partition in taken:
            owner = self._owner.get(partition)
            if owner is not None and self.counts[owner] < share[owner]:
                self._place(partition, owner)  # it has not left yet: to call the move off costs nothing
            else:
                self._free.append(partition)

    def _shares(self, by_load: Sequence[str]) -> dict[str, int]:
        """The number of leases for each host. Hosts that have more placed leases than an even share keep just these."""
        share: dict[str, int] = {}
        rest, count = list(by_load), len(self.target) + len(self._free)
        while rest:
            least, larger = divmod(count, len(rest))
            over = [host for host in rest if self._placed.get(host, 0) > least]
            if not over:
                return share | {host: least + (rank < larger) for rank, host in enumerate(rest)}
            share.update((host, self._placed[host]) for host in over)
            rest, count = [host for host in rest if host not in share], count - sum(share[host] for host in over)
        return share

    def fill(self) -> None:
        """Give each lease without a target to the host that has fewest."""
        if not self.hosts:
            return
        heap = [(count, host) for host, count in self.counts.items()]
        heapq.heapify(heap)
        for partition in sorted(self._free):
            count, host = heap[0]
            self._place(partition, host)
            heapq.heapreplace(heap, (count + 1, host))
        self._free.clear()

    def _place(self, partition: str, host: str) -> None:
        self.target[partition] = host
        self.counts[host] += 1
        self._of[host].append(partition)


class _WeightedTargets(_Targets):
    """The same by weights: no lease can move to a host with less without making that one the heavier of the two."""

    def __init__(self, hosts: Iterable[str], weights: Mapping[str, int]) -> None:
        super().__init__(hosts)
        self._weights = weights

    def held(self) -> dict[str, str]:
        loads = self._loads()
        total = loads.total()
        return {host: f"{load / total:.0%} of the load" for host, load in loads.items()} if total else {}

    def level(self) -> None:
        """Move leases from heavy hosts to light ones."""
        self.fill()  # first: a heavy lease without an owner changes what is even
        movable = {
            host: [Load(self._weight(p), p, self._owner.get(p)) for p in partitions]
            for host, partitions in self._of.items()
        }
        for step in steps(self._loads(), movable):
            self.target[step.load.partition] = step.target
            self.counts[step.source] -= 1
            self.counts[step.target] += 1

    def fill(self) -> None:
        """Give each lease without a target to the lightest host, heavy ones first."""
        if not self.hosts:
            return
        heap = [(load, host) for host, load in sorted(self._loads().items())]
        heapq.heapify(heap)
        for partition in sorted(self._free, key=lambda p: (-self._weight(p), p)):
            load, host = heap[0]
            self._place(partition, host)
            heapq.heapreplace(heap, (load + self._weight(partition), host))
        self._free.clear()

    def _weight(self, partition: str) -> int:
        return self._weights.get(partition, 1)

    def _loads(self) -> Counter[str]:
        loads = Counter(dict.fromkeys(self.counts, 0))
        for partition, host in self.target.items():
            loads[host] += self._weight(partition)
        return loads
