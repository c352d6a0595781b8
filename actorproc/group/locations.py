"""What is at a place: a container, the folder of a processor in one, or a log; said where another was meant."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from actorproc.errors import CorruptObject, StoreRefused
from actorproc.group.heartbeat import incarnation_of
from actorproc.group.membership import GroupDocument
from actorproc.storage.listing import documents
from actorproc.storage.names import GROUP, LOG_META, ProcessorLayout
from actorproc.storage.store import Store

_NAMED = 20  # processors that an error message lists
_LOOKED_AT = 100  # folders; what has more is hardly a container


async def find_processors(store: Store) -> list[str]:
    """Names of the first processors in the container. Two requests for each folder in it, however full they are."""
    found: list[str] = []
    after = ""
    for _ in range(_LOOKED_AT):
        entries = (await store.list("", after=after, limit=1)).entries
        if not entries or len(found) == _NAMED:
            break
        folder, slash, _ = entries[0].key.partition("/")
        if slash and await store.get(f"{folder}/{GROUP}", tail=1):
            found.append(folder)
        after = folder + "0" if slash else entries[0].key  # "0" comes next after "/": all of the folder is passed over
    return sorted(found)


async def missing_processor(store: Store, processor: str) -> str | None:
    """Why nothing can be said of `processor`: it has never run there. Names those that have. None if it has."""
    if await _has_run(store, ProcessorLayout(processor)):
        return None
    missing = f"no processor {processor!r} at {store.url}"
    if (wrong := await wrong_container(store)) is not None:
        return f"{missing}: {wrong}"
    there = await find_processors(store)
    if not there and await store.get(LOG_META, tail=1):
        return f"{missing}: that is a log. Give it as the source, and as the container what `serve` had as container"
    known = f"there are: {', '.join(there)}" if there else "no processor has ever run there"
    return f"{missing}: {known}. Check the name and the container, or start it first"


async def wrong_container(store: Store) -> str | None:
    """Why this is no container: it is the folder of a processor in one, or lies in such a folder. None if it is not."""
    if not await _is_processors(store):
        if (inside := await _processor_above(store)) is None:
            return None
        container, name = _named(inside)
        return f"{store.url} is inside what processor {name!r} keeps; its container is {container}"
    container, name = _named(store)
    return f"{store.url} is the folder of the processor {name!r} itself; its container is {container}"


async def log_in_the_way(store: Store, processor: str) -> str | None:
    """Why `processor` cannot live in this container: a log is where it would. Some names are the same in both, so each would take
    what the other keeps, and who reads it, for its own. None if there is none."""
    if not await store.get(f"{processor}/{LOG_META}", tail=1):
        return None
    place = f"{store.url.rstrip('/')}/{processor}"
    return f"{processor} would keep what it owns at {place}, and that is a log: give another name or container"


class Processors(NamedTuple):
    """What of processors is at a place. `processor`: the one that is meant; in a container, the word for any."""

    what: str
    container: str
    processor: str


async def processors_at(store: Store) -> Processors | None:
    """That this is the folder of a processor, or lies in one, or is a container with some; None if it is nothing of these."""
    if await store.get(GROUP, tail=1):
        return Processors(f"{store.url} is the folder of a processor", *_named(store))
    if there := await find_processors(store):
        what = f"{store.url} is a container, in which processors live ({', '.join(there)})"
        return Processors(what, store.url, "PROCESSOR")
    if (inside := await _processor_above(store)) is not None:
        container, name = _named(inside)
        return Processors(f"{store.url} is inside what processor {name} keeps", container, name)
    return None


async def _processor_above(store: Store) -> Store | None:
    """The folder of a processor that this place lies in."""
    above = store.above()
    while above is not None:
        with suppress(StoreRefused):  # without the right to look there: as if there were none
            if await _is_processors(above):
                return above
        above = above.above()
    return None


async def _is_processors(store: Store) -> bool:
    """Whether this is the folder of a processor: others may call something `group.json`, too."""
    stored = await store.get(GROUP)
    try:
        return stored is not None and GroupDocument.from_json(GROUP, stored.body) is not None
    except CorruptObject:
        return False


def _named(folder: Store) -> tuple[str, str]:
    """URL of the container, and name, of the processor whose folder this is."""
    container, _, name = folder.url.rstrip("/").rpartition("/")
    return container, name


async def _has_run(store: Store, layout: ProcessorLayout) -> bool:
    if await store.get(layout.group, tail=1) or await documents(store, layout.checkpoints):
        return True
    # Hosts that cannot list the partitions of their source have nothing yet that they could write into the group.
    return any(incarnation_of(entry.key) for entry in (await store.list(layout.hosts)).entries)
