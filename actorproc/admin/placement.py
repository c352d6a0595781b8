"""Pauses, drains and placements: an operator's wishes for the group, whether hosts run or not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager

from msgspec.structs import replace

from actorproc.admin.audit import Act, record
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.group.format_versions import highest_of
from actorproc.group.membership import GroupDocument
from actorproc.group.other_hosts import OtherHosts
from actorproc.group.wishes import Wishes
from actorproc.runtime.logger import get_logger
from actorproc.runtime.nudge import Nudges, UdpNudges
from actorproc.storage.document import SharedDocument
from actorproc.storage.names import ProcessorLayout, checked_name, natural
from actorproc.storage.store import Store

logger = get_logger(__name__)

_FORMAT = GroupDocument.newest_format_version  # that of a group with wishes


class Placement:
    """Changes the wishes in `group.json`, nudges the hosts, and records each act in the audit.

    Hosts obey at their next look: at once if the nudge arrives, else within `lease_acquire_interval`. A partition that
    is taken from a host finishes its batch and commits first.

    Args:
        who: for the audit, such as `ann@laptop`.
        reason: why, for the audit.

    Raises (every method):
        UsageError: there is no such partition or host.
        CorruptObject: `group.json` is corrupt.
        StoreError: the store failed. After StoreUnavailable the group may have changed.
    """

    def __init__(
        self,
        store: Store,
        layout: ProcessorLayout,
        settings: Settings,
        who: str,
        nudges: Nudges | None = None,
        *,
        reason: str = "",
    ) -> None:
        self._store = store
        self._layout = layout
        self._who = who
        self._reason = reason
        self._nudges = nudges or UdpNudges(store.backend.route, settings.nudge_host, layout.processor)
        self._document = SharedDocument(store, layout.group, GroupDocument)

    async def pause(self, partitions: Collection[str] = ()) -> GroupDocument:
        """Stop these partitions, or all and those to come, until `resume`. Nothing is lost: they go on later."""

        def change(group: GroupDocument) -> Wishes:
            wishes = group.wishes
            if not partitions:
                return replace(wishes, paused=True)
            paused = {*wishes.paused_partitions, *_known(group, partitions)}
            return replace(wishes, paused_partitions=tuple(sorted(paused, key=natural)))

        return await self._act("pause", {"partitions": _listed(partitions)}, change, partitions)

    async def resume(self, partitions: Collection[str] = ()) -> GroupDocument:
        """End the pause of these partitions, or every pause."""

        def change(group: GroupDocument) -> Wishes:
            wishes = group.wishes
            if not partitions:
                return replace(wishes, paused=False, paused_partitions=())
            if wishes.paused:
                raise UsageError("the whole processor is paused, so it can only be resumed as a whole")
            _known(group, partitions)
            kept = tuple(name for name in wishes.paused_partitions if name not in partitions)
            return replace(wishes, paused_partitions=kept)

        return await self._act("resume", {"partitions": _listed(partitions)}, change)

    async def drain(self, host: str) -> GroupDocument:
        """Take all partitions from a host, and give it none until `release_host`. Its process goes on."""

        def change(group: GroupDocument) -> Wishes:
            _member(group, host)
            return replace(group.wishes, drained=tuple(sorted({*group.wishes.drained, host})))

        return await self._act("drain", {"host": host}, change, [host])

    async def move(self, partition: str, host: str) -> GroupDocument:
        """Run a partition on this host for as long as it is alive, until `release`."""

        def change(group: GroupDocument) -> Wishes:
            _known(group, [partition])
            _member(group, host)
            if host in group.wishes.drained:
                raise UsageError(f"host {host!r} is drained: release it first")
            return replace(group.wishes, placed={**group.wishes.placed, partition: host})

        return await self._act("move", {"partition": partition, "host": host}, change, [partition])

    async def release(self, partition: str) -> GroupDocument:
        """End a `move`: the balance decides again which host runs the partition."""

        def change(group: GroupDocument) -> Wishes:
            placed = dict(group.wishes.placed)
            if placed.pop(partition, None) is None:
                raise UsageError(f"partition {partition!r} is not placed; placed are: {_listed(placed) or 'none'}")
            return replace(group.wishes, placed=placed)

        return await self._act("release", {"partition": partition}, change)

    async def release_host(self, host: str) -> GroupDocument:
        """End a `drain`: the host gets partitions again."""

        def change(group: GroupDocument) -> Wishes:
            drained = group.wishes.drained
            if host not in drained:
                raise UsageError(f"host {host!r} is not drained; drained are: {_listed(drained) or 'none'}")
            return replace(group.wishes, drained=tuple(name for name in drained if name != host))

        return await self._act("release", {"host": host}, change)

    async def _act(
        self,
        what: str,
        to: Mapping[str, str],
        change: Callable[[GroupDocument], Wishes],
        names: Collection[str] = (),
    ) -> GroupDocument:
        """Change the wishes, record it, and nudge the hosts. `names`: the wishes that begin, to store their reason."""
        acts = [f"{what} {name}" for name in names] or [what]

        def changed(found: GroupDocument | None) -> GroupDocument:
            group = found or GroupDocument.of()
            if older := sorted(h for h, m in group.members.items() if highest_of(m.incarnation) < _FORMAT):
                raise UsageError(f"these hosts run an earlier version, which knows no {what}: {', '.join(older)}")
            wishes = change(group)
            reasons = {**group.wishes.reasons, **dict.fromkeys(acts, self._reason)}
            kept = {act: why for act, why in reasons.items() if why and act in wishes.acts()}
            return replace(group, wishes=replace(wishes, reasons=kept), format_version=_FORMAT)

        group = await self._document.change(changed) or GroupDocument.of()
        arguments = {name: value for name, value in to.items() if value}
        effect = describe(group.wishes)
        now = self._store.clock.wall()
        act = Act(time=now, who=self._who, what=what, to=arguments, effect=effect, reason=self._reason)
        await record(self._store, self._layout, act)
        await nudge_members(self._store, self._layout, self._nudges, group)
        return group


async def nudge_members(store: Store, layout: ProcessorLayout, nudges: Nudges, group: GroupDocument) -> None:
    """Let all hosts look at the group now."""
    hosts = OtherHosts(store, layout, nudges, logger.bind(processor=layout.processor))
    listening: AbstractAsyncContextManager[None] = nudges.listening(lambda: None)
    async with listening:
        await hosts.nudge(sorted(group.incarnations()), ())


def describe(wishes: Wishes) -> str:
    """All wishes, as a sentence."""
    said = [f"all partitions are paused{wishes.because('pause')}"] if wishes.paused else []
    if wishes.paused_partitions and not wishes.paused:
        names = sorted(wishes.paused_partitions, key=natural)
        said.append("paused: " + ", ".join(name + wishes.because(f"pause {name}") for name in names))
    if wishes.drained:
        said.append("drained: " + ", ".join(host + wishes.because(f"drain {host}") for host in sorted(wishes.drained)))
    if wishes.placed:
        moves = [f"{name} on {host}{wishes.because(f'move {name}')}" for name, host in sorted(wishes.placed.items())]
        said.append("placed: " + ", ".join(moves))
    return "; ".join(said) or "nothing is paused, drained or placed"


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names, key=natural))


def _known(group: GroupDocument, partitions: Collection[str]) -> Collection[str]:
    """The partitions, if the group has leases for all of them."""
    if unknown := [name for name in partitions if name not in group.leases]:
        raise UsageError(f"no partition {unknown[0]!r}; there are: {_listed(group.leases) or 'none yet'}")
    return partitions


def _member(group: GroupDocument, host: str) -> None:
    if checked_name("host", host) not in group.members:
        raise UsageError(f"no host {host!r} in the group; there are: {_listed(group.members) or 'none'}")
