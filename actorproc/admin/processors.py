"""Processors of a container as a whole: list, describe, rename, delete."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from actorproc.admin.audit import Act, operator, record, record_now
from actorproc.admin.fleet import Fleet
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.admin.objects import Amount, amount, copy_all, delete_all, entries_below
from actorproc.errors import UsageError
from actorproc.output.source_identity import SourceRecord, read_source
from actorproc.retention.readers import read_registry
from actorproc.storage.backend import Entry
from actorproc.storage.locations import folders_with
from actorproc.storage.names import AUDIT, GROUP, ProcessorLayout
from actorproc.storage.store import Store


@dataclass(frozen=True, slots=True)
class ProcessorDescription:
    """A processor and all that it owns."""

    fleet: Fleet
    source: SourceRecord | None
    readers: Sequence[str]
    """Registered readers of its output."""
    stored: dict[str, Amount]
    """By folder, such as `output`; `""`: beside the folders."""

    @property
    def total(self) -> Amount:
        return Amount(sum(a.objects for a in self.stored.values()), sum(a.bytes for a in self.stored.values()))

    @property
    def alive(self) -> list[str]:
        """Hosts whose heartbeats are young."""
        return [host.host for host in self.fleet.hosts if host.alive]


async def list_processors(store: Store) -> list[str]:
    """Names of the processors in a container. Two requests for each folder."""
    return sorted([name async for name in folders_with(store, GROUP)])


async def describe_processor(store: Store, layout: ProcessorLayout, *, expiration: float) -> ProcessorDescription:
    """A look at the fleet, and a listing of all objects.

    Args:
        expiration: seconds after which a silent host counts as dead that does not say itself.
    """
    fleet = await FleetWatch(store, layout, expiration).look()
    registry = await read_registry(store, layout.readers)
    folders: dict[str, list[Entry]] = {}
    for entry in await entries_below(store, layout.root):
        folders.setdefault(_folder(layout, entry.key), []).append(entry)
    stored = {folder: amount(entries) for folder, entries in sorted(folders.items())}
    return ProcessorDescription(fleet, await read_source(store, layout), sorted(registry.readers), stored)


async def delete_processor(store: Store, layout: ProcessorLayout, *, expiration: float) -> Amount:
    """Delete everything that a processor owns. If it is interrupted, call it again. The audit of the container keeps
    that it was deleted.

    Raises:
        UsageError: a host is alive, or readers of its output are registered.
    """
    await _check_unused(store, layout, expiration)
    deleted = await _delete(store, layout)
    await record_now(
        store, AUDIT, "delete", {"processor": layout.processor},
        f"objects deleted: {deleted.objects:,}, {deleted.bytes:,} bytes",
    )  # fmt: skip
    return deleted


async def _delete(store: Store, layout: ProcessorLayout) -> Amount:
    entries = await entries_below(store, layout.root)
    # While the record of the source exists, no other stream can begin among the remaining objects.
    last = [key for key in (layout.group, layout.origin) if any(entry.key == key for entry in entries)]
    await delete_all(store, [entry.key for entry in entries if entry.key not in last])
    for key in last:
        await store.delete(key)
    return amount(entries)


async def rename_processor(store: Store, layout: ProcessorLayout, name: str, *, expiration: float) -> Amount:
    """Copy everything under another name, and delete it under the old one. If it is interrupted, call it again.

    Raises:
        UsageError: a host is alive, readers of its output are registered, or something else has the new name.
        CorruptObject: an earlier call left objects that have changed since.
    """
    target = ProcessorLayout(name)
    await _check_unused(store, layout, expiration)
    entries = await entries_below(store, layout.root)
    kept = [entry.key for entry in entries if not entry.key.startswith((layout.hosts, layout.probe))]
    await _check_free(store, layout, target, kept)
    last = [key for key in (layout.origin, layout.group) if key in kept]
    await copy_all(store, [key for key in kept if key not in last], layout.root, target.root)
    await _check_unused(store, layout, expiration)  # a host may have begun during a long copy
    for key in last:  # with the second one there is a processor of the new name
        await copy_all(store, [key], layout.root, target.root)
    act = Act(time=store.clock.wall(), who=operator(), what="rename", to={"from": layout.processor, "to": name})
    await record(store, target, act)
    try:
        await _check_unused(store, layout, expiration)
        await _delete(store, layout)
    except UsageError as error:
        raise UsageError(
            f"{error}. Meanwhile {name!r} became a copy that lacks what these hosts do: delete {name!r}, not "
            f"{layout.processor!r}, and rename again"
        ) from None
    return amount(entries)


async def _check_free(store: Store, layout: ProcessorLayout, target: ProcessorLayout, kept: Collection[str]) -> None:
    """Check that the new name has no objects, except copies of `kept` by an interrupted rename."""
    found = [entry.key for entry in await entries_below(store, target.root)]
    if target.group in found:
        raise UsageError(f"there is a processor {target.processor!r} at {store.url} already: give a name that is free")
    copies = {target.root + key.removeprefix(layout.root) for key in kept}
    if foreign := [key for key in found if key not in copies]:
        raise UsageError(
            f"{store.url} has objects of another processor {target.processor!r}, such as {foreign[0]}: give a name "
            "that is free"
        )


async def _check_unused(store: Store, layout: ProcessorLayout, expiration: float) -> None:
    fleet = await FleetWatch(store, layout, expiration).look()
    if alive := [host.host for host in fleet.hosts if host.alive]:
        raise UsageError(
            f"hosts of {layout.processor} are alive: {', '.join(alive)}. Stop them first; a host that was killed "
            "counts as dead when its heartbeat is older than lease_expiration_interval"
        )
    if readers := sorted((await read_registry(store, layout.readers)).readers):
        raise UsageError(
            f"the output of {layout.processor} has registered readers: {', '.join(readers)}. Remove them first, with "
            f"`actorproc readers remove READER --name {layout.processor} --container {store.url}`"
        )


def _folder(layout: ProcessorLayout, key: str) -> str:
    folder, slash, _ = key.removeprefix(layout.root).partition("/")
    return folder if slash else ""
