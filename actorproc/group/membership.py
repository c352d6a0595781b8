"""The group document, `group.json`: who is in and who runs what; how it is written, checked and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from actorproc.document import document, to_document
from actorproc.group.assignment import Lease, Member
from actorproc.layout import ProcessorLayout
from actorproc.store import Store


@dataclass(frozen=True, slots=True)
class GroupDocument:
    """`group.json`: who is in, and who runs what. Leases are stored by owner, so each costs its name and its epoch."""

    members: Mapping[str, Member] = field(default_factory=dict)
    leases: Mapping[str, Lease] = field(default_factory=dict)
    put_id: str = ""

    def incarnations(self) -> set[tuple[str, str]]:
        """(host, incarnation) of each member."""
        return {(host, member.incarnation) for host, member in self.members.items()}

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
            return cls(members, leases, str(fields["put_id"]))


async def read_group(store: Store, layout: ProcessorLayout) -> GroupDocument | None:
    """The group as it is now; None if no host has ever joined.

    Raises:
        CorruptObject: `group.json` is not what we wrote.
    """
    stored = await store.get(layout.group)
    return GroupDocument.from_json(layout.group, stored.body) if stored else None
