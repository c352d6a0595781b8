"""The group document, `group.json`: who is in and who runs what; how it is written, checked and read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from actorproc.group.assignment import Lease, Member
from actorproc.group.heartbeat import Heartbeat, Incarnation
from actorproc.storage.document import document, to_document
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

_REMEMBERED = 64  # of those that are out; a heartbeat of theirs is taken for a newcomer's only while it is fresh


@dataclass(frozen=True, slots=True)
class GroupDocument:
    """`group.json`: who is in, and who runs what. Leases are stored by owner, so each costs its name and its epoch.

    `out`: incarnations that were members, or left before they were, the latest last. None of them comes back: what is found of it
    is left over.
    """

    members: Mapping[str, Member] = field(default_factory=dict)
    leases: Mapping[str, Lease] = field(default_factory=dict)
    put_id: str = ""
    out: Sequence[Incarnation] = ()

    def incarnations(self) -> set[Incarnation]:
        """Of the members."""
        return {(host, member.incarnation) for host, member in self.members.items()}

    def said_by_owners(self, heartbeats: Iterable[Heartbeat], what: str) -> dict[str, Heartbeat]:
        """Partitions that are in the statistic `what`, a collection, of the heartbeat of their owner, by that."""
        members = self.incarnations()  # else it is of an earlier life of the host, and nobody has removed it yet
        found: dict[str, Heartbeat] = {}
        for beat in heartbeats:
            named = beat.statistics.get(what)
            if (beat.host, beat.incarnation) in members and isinstance(named, Collection):
                found.update((p, beat) for p in named if p in self.leases and self.leases[p].owner == beat.host)
        return found

    def may_join(self, newcomers: Mapping[str, str]) -> dict[str, str]:
        """Those hosts, with their incarnation, that are not out."""
        return {host: incarnation for host, incarnation in newcomers.items() if (host, incarnation) not in self.out}

    def followed_by(
        self,
        members: Mapping[str, Member],
        leases: Mapping[str, Lease],
        put_id: str,
        *,
        listed: Collection[Incarnation],
        left: Collection[Incarnation] = (),
    ) -> Self:
        """The document after this one. Who is in it no more, or has `left`, is `out`; the oldest of those are forgotten, unless
        their heartbeat is still `listed`."""
        after = type(self)(members, leases, put_id)
        out = [*self.out, *sorted(self.incarnations().union(left) - after.incarnations())]
        older = [who for who in out[:-_REMEMBERED] if who in listed]
        return replace(after, out=(*older, *out[-_REMEMBERED:]))

    def to_json(self) -> bytes:
        owned: dict[str, dict[str, int]] = {}
        unowned: dict[str, int] = {}
        following: dict[str, str] = {}
        for partition, (owner, epoch, target) in self.leases.items():
            (unowned if owner is None else owned.setdefault(owner, {}))[partition] = epoch
            if target is not None:
                following[partition] = target
        members = {host: {"incarnation": m.incarnation, "leaving": m.leaving} for host, m in self.members.items()}
        fields = {
            "put_id": self.put_id,
            "members": members,
            "leases": owned,
            "unowned": unowned,
            "next": following,
            "out": self.out,
        }
        return to_document(fields)

    @classmethod
    def from_json(cls, key: str, body: bytes) -> Self:
        """The document in `body`, which was read from `key`.

        Raises:
            CorruptObject: it is none, or of a newer version.
        """
        with document(key, body, "group document") as fields:
            following, unowned = dict(fields["next"]), dict(fields["unowned"])
            leases = {partition: Lease(None, epoch) for partition, epoch in unowned.items()}
            epochs = list(unowned.values())
            for owner, owned in fields["leases"].items():
                leases.update((p, Lease(owner, epoch, following.get(p))) for p, epoch in owned.items())
                epochs += owned.values()
            if not all(type(epoch) is int for epoch in epochs) or len(epochs) != len(leases):
                raise ValueError("an epoch is no number, or a partition has two owners")
            members = {host: Member(str(m["incarnation"]), bool(m["leaving"])) for host, m in fields["members"].items()}
            out = tuple((str(host), str(incarnation)) for host, incarnation in fields.get("out", ()))
            return cls(members, leases, str(fields["put_id"]), out)


async def read_group(store: Store, layout: ProcessorLayout) -> GroupDocument | None:
    """The group as it is now; None if no host has ever joined.

    Raises:
        CorruptObject: `group.json` is not what we wrote.
    """
    stored = await store.get(layout.group)
    return GroupDocument.from_json(layout.group, stored.body) if stored else None
