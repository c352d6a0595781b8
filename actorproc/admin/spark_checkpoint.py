"""Reads the position of a Spark query from its checkpoint: the offsets at which its last committed micro-batch ended.

Spark writes `offsets/<n>` before micro-batch n runs and `commits/<n>` after it. A restarted query begins where the last
committed micro-batch ended, so nothing before that is read again.
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
_NO_OFFSET = "-"  # written for a source that has not begun


async def committed_numbers(store: Store, of: str, identity: str) -> Mapping[str, int]:
    """The number to read next by partition; empty before the first committed micro-batch.

    Args:
        store: the query's `checkpointLocation`.
        of: the dataset that it reads, for messages.
        identity: of that dataset, as in the offsets. If a query reads it twice, the slower position counts.

    Raises:
        UsageError: the query reads another dataset.
        CorruptObject: the checkpoint is corrupt, or of an unknown version.
    """
    batches = await _batches(store, _COMMITS)
    if not batches:
        return {}
    sources = await _sources(store, max(batches))
    ours = [Offset.checked(found, of, identity) for found in sources if _is_ours(found, identity)]
    if not ours:
        raise UsageError(f"the Spark checkpoint {store.url} belongs to a query that does not read {of}")
    partitions = set[str]().union(*(offset.next for offset in ours))
    # A partition that one of them lacks was not read by it.
    return {p: min(offset.next[p] for offset in ours) for p in partitions if all(p in offset.next for offset in ours)}


async def has_begun(store: Store) -> bool:
    """Whether a micro-batch was planned: a restart runs it from the planned offsets."""
    return bool(await _batches(store, _OFFSETS))


async def reads_through_data_source(store: Store) -> bool:
    """Whether a query with this checkpoint read through our data source.

    Raises:
        CorruptObject: the checkpoint is corrupt, or of an unknown version.
    """
    batches = await _batches(store, _OFFSETS)
    return bool(batches) and any(
        isinstance(found, dict) and "identity" in found for found in await _sources(store, max(batches))
    )


async def _batches(store: Store, folder: str) -> list[int]:
    names = [entry.key.removeprefix(folder) for entry in (await store.list(folder)).entries]
    return [int(name) for name in names if name.isdecimal()]


async def _sources(store: Store, batch: int) -> list[Any]:
    """The offsets of a micro-batch's sources; None for offsets that are not JSON."""
    key = f"{_OFFSETS}{batch}"
    stored = await store.get(key)
    if stored is None:
        raise CorruptObject(key, "is missing, although its micro-batch is committed", store.url)
    version, _, rest = stored.body.decode(errors="replace").partition("\n")
    if version != _VERSION:
        raise CorruptObject(key, f"has version {version!r}, this actorproc knows {_VERSION}", store.url)
    _, *sources = rest.splitlines()  # the first line is about the whole query
    return list(map(_parsed, sources))


def _parsed(line: str) -> Any:
    try:
        return None if line == _NO_OFFSET else orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def _is_ours(found: Any, identity: str) -> bool:
    return isinstance(found, dict) and found.get("identity") == identity
