"""The offsets that a Spark query keeps in its checkpoint, and its position: where its last committed micro-batch ended.

Spark writes `offsets/<n>` before micro-batch n runs and `commits/<n>` after it. A restarted query begins where the last
committed micro-batch ended, so nothing before that is read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from actorproc.errors import CorruptObject, UsageError
from actorproc.storage.store import Store

_COMMITS, _OFFSETS = "commits/", "offsets/"
WRITTEN_BY_QUERIES = _OFFSETS, _COMMITS
"""Prefixes of the files that a query writes for each micro-batch."""

_VERSION = "v1"  # of the file
_OFFSET_VERSION = 1


def dataset_title(kind: str, path: str, url: str) -> str:
    """A dataset in the store at `url`, for messages and offsets."""
    return f"{kind} {path} at {url}" if path else f"{kind} at {url}"


def stream_identity(kind: str, identity: str | None, of: str) -> str:
    """Distinguishes datasets in offsets: by their identity, or else by their location."""
    return f"{kind}: {identity or of}"


def make_offset(of: str, identity: str, numbers: Mapping[str, int]) -> dict[str, Any]:
    """An offset in the checkpoint of a query.

    Args:
        of: title of the dataset that it reads.
        identity: distinguishes it from another dataset at the same location.
        numbers: number to read next, by partition.
    """
    # Sorted: Spark compares offsets by their JSON.
    return {"version": _OFFSET_VERSION, "of": of, "identity": identity, "next": dict(sorted(numbers.items()))}


def offset_numbers(offset: Mapping[str, Any], of: str, identity: str) -> dict[str, int]:
    """The number to read next, by partition, in an offset of a query that reads dataset `of` with this `identity`.

    Raises:
        UsageError: the checkpoint belongs to another dataset, or to another version of actorproc.
    """
    try:
        version, was, known, numbers = offset["version"], offset["of"], offset["identity"], dict(offset["next"])
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            f"the checkpoint holds {str(offset)[:200]!r}, which is not an offset of actorproc: "
            "it belongs to another query. Give this one a checkpointLocation of its own"
        ) from None
    if version != _OFFSET_VERSION:
        raise UsageError(
            f"the checkpoint holds an offset of version {version!r}, and this actorproc knows {_OFFSET_VERSION}: "
            "update it"
        )
    if known != identity:
        again = f"{of} as it was before it was deleted and created again" if was == of else was
        raise UsageError(
            f"the checkpoint belongs to a query on {again}, and this query reads {of}: their numbers have nothing "
            "to do with each other. Give this query a checkpointLocation of its own, or the container and name it "
            "began with"
        )
    return numbers


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
    ours = [offset_numbers(found, of, identity) for found in sources if found.get("identity") == identity]
    if not ours:
        raise UsageError(f"the Spark checkpoint {store.url} belongs to a query that does not read {of}")
    # A partition that one of them lacks was not read by it.
    return {p: min(numbers[p] for numbers in ours) for p in ours[0] if all(p in numbers for numbers in ours)}


async def has_begun(store: Store) -> bool:
    """Whether a micro-batch was planned: a restart runs it from the planned offsets."""
    return bool(await _batches(store, _OFFSETS))


async def _batches(store: Store, folder: str) -> list[int]:
    names = [entry.key.removeprefix(folder) for entry in (await store.list(folder)).entries]
    return [int(name) for name in names if name.isdecimal()]


async def _sources(store: Store, batch: int) -> list[Mapping[str, Any]]:
    """The offsets of a micro-batch's sources; without those that are not JSON objects."""
    key = f"{_OFFSETS}{batch}"
    stored = await store.get(key)
    if stored is None:
        raise CorruptObject(key, "is missing, although its micro-batch is committed", store.url)
    version, _, rest = stored.body.decode(errors="replace").partition("\n")
    if version != _VERSION:
        raise CorruptObject(key, f"has version {version!r}, this actorproc knows {_VERSION}", store.url)
    _, *sources = rest.splitlines()  # the first line is about the whole query
    return [offset for source in sources if (offset := parse_offset(source))]


def parse_offset(offset: object) -> Mapping[str, Any]:
    """An offset as Spark has it, parsed or as JSON; empty if it is not a JSON object."""
    if isinstance(offset, str):
        with suppress(orjson.JSONDecodeError):
            offset = orjson.loads(offset)
    return offset if isinstance(offset, dict) else {}
