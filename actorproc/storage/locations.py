"""Recognizes containers, processors' folders and logs, for errors about a wrong URL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from actorproc.errors import CorruptObject
from actorproc.storage.document import Document
from actorproc.storage.listing import documents
from actorproc.storage.names import GROUP, LOG_META, ProcessorLayout
from actorproc.storage.store import Store

_NAMED = 20  # processors in an error message
_LAST = "\U0010ffff"  # sorts behind all other characters
_FOLDERS = 100  # searched for processors


async def find_processors(store: Store) -> list[str]:
    """Names of the first processors in the container. It takes two requests for each folder."""
    found: list[str] = []
    async for folder in folders_with(store, GROUP, most=_FOLDERS):
        found.append(folder)
        if len(found) == _NAMED:
            break
    return sorted(found)


async def folders_with(store: Store, file: str, *, most: int | None = None) -> AsyncIterator[str]:
    """Folders of the store that hold `file`, in its order; of more than `most` folders the first ones are searched."""
    seen = set[str]()
    ways = [""]
    while ways and (most is None or len(seen) < most):
        entries = (await store.list("", after=ways.pop(0), limit=1)).entries
        folder, slash, _ = entries[0].key.partition("/") if entries else ("", "", "")
        if not entries or folder + slash in seen:
            continue
        seen.add(folder + slash)
        if slash and await store.get(f"{folder}/{file}", tail=1):
            yield folder
        ways = _behind(folder) if slash else [folder]


def _behind(folder: str) -> list[str]:
    """Keys behind a folder, at one of which a listing goes on. "0" follows "/".

    A service that keeps folders lists 'b/c' before 'b-c', and behind 'b0' no 'b-c': so the last key that the folder
    could have is tried first. Behind that one MinIO lists nothing if there is a folder 'b+'.
    """
    return [f"{folder}/{_LAST}", f"{folder}0"]


async def missing_processor(store: Store, processor: str) -> str | None:
    """The error if `processor` has never run in this container, with the names of those that have; else None."""
    if await _has_run(store, ProcessorLayout(processor)):
        return None
    missing = f"no processor {processor!r} at {store.url}"
    if (wrong := await wrong_container(store)) is not None:
        return f"{missing}: {wrong}"
    names = await find_processors(store)
    if not names and await store.get(LOG_META, tail=1):
        return f"{missing}: that is a log. Give the log as --source, and the URL that `serve` got as --container"
    known = f"there are: {', '.join(names)}" if names else "no processor has ever run there"
    return f"{missing}: {known}. Check the name and the container, or start it first"


async def wrong_container(store: Store) -> str | None:
    """The error if this is the folder of a processor, not its container; else None."""
    if not await _is_processor_folder(store):
        return None
    container, name = _container_and_name(store)
    return f"{store.url} is the folder of the processor {name!r} itself; its container is {container}"


async def log_in_the_way(store: Store, processor: str) -> str | None:
    """The error if a log is where `processor` would store its objects; else None. Some keys are the same in both."""
    if not await store.get(f"{processor}/{LOG_META}", tail=1):
        return None
    folder = f"{store.url.rstrip('/')}/{processor}"
    return f"{processor} would store its objects at {folder}, and that is a log: give another name or container"


class FoundProcessors(NamedTuple):
    """Processors where a log was expected. `processor` is the word PROCESSOR in a container with any number of them."""

    description: str
    container: str
    processor: str


async def processors_at(store: Store) -> FoundProcessors | None:
    """Whether this is the folder of a processor, or a container with processors; else None."""
    if await _is_processor_folder(store):
        return FoundProcessors(f"{store.url} is the folder of a processor", *_container_and_name(store))
    if names := await find_processors(store):
        description = f"{store.url} is a container, in which processors live ({', '.join(names)})"
        return FoundProcessors(description, store.url, "PROCESSOR")
    return None


async def _is_processor_folder(store: Store) -> bool:
    stored = await store.get(GROUP)
    try:
        return stored is not None and Document.from_json(GROUP, stored.body) is not None
    except CorruptObject:  # a foreign file of this name
        return False


def _container_and_name(folder: Store) -> tuple[str, str]:
    container, _, name = folder.url.rstrip("/").rpartition("/")
    return container, name


async def _has_run(store: Store, layout: ProcessorLayout) -> bool:
    if await store.get(layout.group, tail=1) or await documents(store, layout.checkpoints):
        return True
    # Hosts that cannot list the partitions of their source yet have written heartbeats only.
    return any("~" in entry.key and entry.key.endswith(".json") for entry in (await store.list(layout.hosts)).entries)
