"""Counts, copies and deletes many objects of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from actorproc.errors import CorruptObject
from actorproc.runtime.tasks import gather
from actorproc.storage.backend import Entry
from actorproc.storage.store import Store

_AT_ONCE = 500  # objects; the store bounds how many requests are on their way


class Amount(NamedTuple):
    """How much there is."""

    objects: int
    bytes: int


async def entries_below(store: Store, prefix: str) -> list[Entry]:
    """All objects whose keys begin with `prefix`."""
    return list((await store.list(prefix)).entries)


def amount(entries: Sequence[Entry]) -> Amount:
    """Their number and size."""
    return Amount(len(entries), sum(entry.size for entry in entries))


async def delete_all(store: Store, keys: Sequence[str]) -> None:
    """Delete these objects, in any order."""
    for some in (keys[at : at + _AT_ONCE] for at in range(0, len(keys), _AT_ONCE)):
        await gather(some, store.delete)


async def copy_all(store: Store, keys: Sequence[str], source: str, target: str) -> None:
    """Copy objects from below the prefix `source` to below `target`, where none of them may exist with other content.

    Raises:
        CorruptObject: the target exists and differs.
    """

    async def copy(key: str) -> None:
        stored, new = await store.get(key), target + key.removeprefix(source)
        if stored is None:
            return
        existing = await store.get(new)
        if existing is None:
            await store.create(new, stored.body)
        elif existing.body != stored.body:
            raise CorruptObject(new, f"exists, and differs from {key}: delete all below {target}", store.url)

    for some in (keys[at : at + _AT_ONCE] for at in range(0, len(keys), _AT_ONCE)):
        await gather(some, copy)
