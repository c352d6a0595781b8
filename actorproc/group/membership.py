"""The group document, `group.json`: members and leases, changed by compare-and-swap."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Self

import msgspec

from actorproc.group.assignment import Closed, Lease, Member
from actorproc.group.format_versions import agreed, highest_of
from actorproc.group.heartbeat import Incarnation
from actorproc.group.wishes import NO_WISHES, Wishes
from actorproc.storage.document import Document, SharedDocument
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

_OUT_REMEMBERED = 64  # a forgotten incarnation could join again only while its heartbeat is fresh


class GroupDocument(Document, frozen=True, dict=True):
    """Members and leases. Leases are stored by owner, so each costs its name and its epoch."""

    newest_format_version = 3  # from which on `ended`, `vanished` or `wishes` is not empty

    members: dict[str, Member]
    owned: dict[str, dict[str, int]] = msgspec.field(name="leases")
    """Leases with an owner: owner -> partition -> epoch."""
    unowned: dict[str, int]
    """Leases without an owner: partition -> epoch."""
    next_owners: dict[str, str] = msgspec.field(name="next")
    """Partition -> the host to which its owner hands it over; "": to nobody."""
    ended: dict[str, int] = msgspec.field(default_factory=dict)
    """Partitions that have ended -> epoch: nobody may run them any more."""
    vanished: dict[str, int] = msgspec.field(default_factory=dict)
    """Partitions that the source does not know any more -> epoch: nobody runs them until they are listed again."""
    out: tuple[Incarnation, ...] = ()
    """Former members, the latest last. None of these incarnations may join again."""
    writes: int = 1
    """The format version that members may write, because every member reads it. It only grows."""
    wishes: Wishes = NO_WISHES

    def __post_init__(self) -> None:
        if len(self.leases) != sum(map(len, (self.unowned, self.ended, self.vanished, *self.owned.values()))):
            raise ValueError("a partition has two owners")

    @classmethod
    def of(
        cls,
        members: Mapping[str, Member] | None = None,
        leases: Mapping[str, Lease] | None = None,
        *,
        out: tuple[Incarnation, ...] = (),
        writes: int = 1,
        wishes: Wishes = NO_WISHES,
        put_id: str = "",
    ) -> Self:
        """The document with these leases, by partition."""
        owned: dict[str, dict[str, int]] = {}
        unowned: dict[str, int] = {}
        next_owners: dict[str, str] = {}
        closed: dict[Closed, dict[str, int]] = {"ended": {}, "vanished": {}}
        for partition, (owner, epoch, next_owner, why) in (leases or {}).items():
            if why is not None:
                closed[why][partition] = epoch
                continue
            (unowned if owner is None else owned.setdefault(owner, {}))[partition] = epoch
            if next_owner is not None:
                next_owners[partition] = next_owner
        return cls(
            dict(members or {}), owned, unowned, next_owners, **closed, out=out, writes=writes, wishes=wishes,
            put_id=put_id, format_version=3 if any(closed.values()) or wishes != NO_WISHES else 1,
        )  # fmt: skip

    @cached_property
    def leases(self) -> Mapping[str, Lease]:
        """By partition."""
        leases = {partition: Lease(None, epoch) for partition, epoch in self.unowned.items()}
        leases |= {partition: Lease(None, epoch, closed="ended") for partition, epoch in self.ended.items()}
        leases |= {partition: Lease(None, epoch, closed="vanished") for partition, epoch in self.vanished.items()}
        for owner, epochs in self.owned.items():
            for partition, epoch in epochs.items():
                leases[partition] = Lease(owner, epoch, self.next_owners.get(partition))
        return leases

    def incarnations(self) -> set[Incarnation]:
        """The members."""
        return {(host, member.incarnation) for host, member in self.members.items()}

    def owner_of(self, partition: str) -> Incarnation | None:
        """The member that has the partition's lease."""
        lease = self.leases.get(partition)
        if lease is None or lease.owner is None or lease.owner not in self.members:
            return None
        return lease.owner, self.members[lease.owner].incarnation

    def may_join(self, newcomers: Mapping[str, str]) -> dict[str, str]:
        """The newcomers, host -> incarnation, that are not `out` and read the group's format."""
        return {
            host: incarnation
            for host, incarnation in newcomers.items()
            if (host, incarnation) not in self.out and highest_of(incarnation) >= self.writes
        }

    def followed_by(
        self,
        members: Mapping[str, Member],
        leases: Mapping[str, Lease],
        wishes: Wishes,
        *,
        listed: Collection[Incarnation],
        left: Collection[Incarnation] = (),
    ) -> Self:
        """The document after this one.

        Args:
            listed: incarnations whose heartbeats are still stored; as long as they are, `out` keeps them.
            left: incarnations to add to `out`, although they may never have been members.
        """
        now = {(host, member.incarnation) for host, member in members.items()}
        out = [*self.out, *sorted(self.incarnations().union(left) - now)]
        older = [who for who in out[:-_OUT_REMEMBERED] if who in listed]
        writes = agreed(self.writes, (member.incarnation for member in members.values()))
        return self.of(members, leases, out=(*older, *out[-_OUT_REMEMBERED:]), writes=writes, wishes=wishes)


async def read_group(store: Store, layout: ProcessorLayout) -> GroupDocument | None:
    """The group as it is now; None if no host has ever joined.

    Raises:
        CorruptObject: `group.json` is corrupt.
    """
    return await SharedDocument(store, layout.group, GroupDocument).read()
