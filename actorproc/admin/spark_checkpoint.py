"""How far a Spark query has read, from its own checkpoint: the offsets with which its last finished micro-batch ended.

`offsets/<n>` is written before micro-batch n runs, `commits/<n>` after. A query that is started again runs the first
batch that is not committed from where the last committed one ended; so nothing before that is read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from actorproc.errors import CorruptObject, UsageError
from actorproc.retention.spark_offsets import Offset
from actorproc.storage.store import Store

_COMMITS, _OFFSETS = "commits/", "offsets/"
_VERSION = "v1"
_NO_OFFSET = "-"  # of a source that has not begun


async def committed_numbers(store: Store, of: str, identity: str) -> Mapping[str, int]:
    """The number that comes next by partition; none while no micro-batch is done, or nothing is there at all.

    Args:
        store: the query's `checkpointLocation`.
        of: what it reads, for messages; `identity` as its offsets have it. Read twice in a query, the slower counts.

    Raises:
        UsageError: the query reads something else.
        CorruptObject: this is no checkpoint that can be understood.
    """
    batches = await _batches(store, _COMMITS)
    if not batches:
        return {}
    sources = await _sources(store, max(batches))
    ours = [Offset.checked(found, of, identity) for found in sources if _is_ours(found, identity)]
    if not ours:
        raise UsageError(f"the Spark checkpoint {store.url} belongs to a query that does not read {of}")
    partitions = set[str]().union(*(offset.next for offset in ours))
    # A partition that one of them has not met yet is not known to be read.
    return {p: min(offset.next[p] for offset in ours) for p in partitions if all(p in offset.next for offset in ours)}


async def has_begun(store: Store) -> bool:
    """Whether a micro-batch was planned, done or not: it runs, or runs again, from where this says."""
    return bool(await _batches(store, _OFFSETS))


async def reads_through_data_source(store: Store) -> bool:
    """Whether a query of this checkpoint read anything through the data source of ours.

    Raises:
        CorruptObject: this is no checkpoint that can be understood.
    """
    batches = await _batches(store, _OFFSETS)
    return bool(batches) and any(
        isinstance(found, dict) and "identity" in found for found in await _sources(store, max(batches))
    )


async def _batches(store: Store, folder: str) -> list[int]:
    names = [entry.key.removeprefix(folder) for entry in (await store.list(folder)).entries]
    return [int(name) for name in names if name.isdecimal()]


async def _sources(store: Store, batch: int) -> list[Any]:
    """The offsets of a micro-batch's sources; None for what is no JSON."""
    key = f"{_OFFSETS}{batch}"
    stored = await store.get(key)
    if stored is None:
        raise CorruptObject(key, "is missing, and its micro-batch is committed", store.url)
    version, _, rest = stored.body.decode(errors="replace").partition("\n")
    if version != _VERSION:
        raise CorruptObject(key, f"has version {version!r}, this actorproc knows {_VERSION}", store.url)
    _, *sources = rest.splitlines()  # the first is about the query as a whole
    return list(map(_parsed, sources))


def _parsed(line: str) -> Any:
    try:
        return None if line == _NO_OFFSET else orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def _is_ours(found: Any, identity: str) -> bool:
    return isinstance(found, dict) and found.get("identity") == identity
