"""All objects of a log and of a container, read directly from the store where possible."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anyio

from actorproc.config.settings import Settings
from actorproc.stores import open_store

HIDDEN = ".actorproc"  # of the folder store: locks and drafts, no objects

Objects = Mapping[str, bytes]
"""Key -> body, in key order."""


def read_folder(folder: Path) -> Objects:
    """Every file below `folder`, straight from the file system."""
    files = (path for path in folder.rglob("*") if path.is_file() and HIDDEN not in path.relative_to(folder).parts)
    return dict(sorted((str(path.relative_to(folder)), path.read_bytes()) for path in files))


async def read_store(url: str, settings: Settings) -> Objects:
    """Every object of the store at `url`."""
    found: dict[str, bytes] = {}
    async with open_store(url, settings) as store:
        keys = [entry.key for entry in (await store.list("")).entries]

        async def read(key: str) -> None:
            stored = await store.get(key)
            if stored is not None:  # else deleted since
                found[key] = stored.body

        async with anyio.create_task_group() as tasks:
            for key in keys:
                tasks.start_soon(read, key)
    return {key: found[key] for key in keys if key in found}
