"""Reads the committed state of a partition, as of its newest commit, while the partition runs or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import json, msgpack

from actorproc.errors import CorruptObject
from actorproc.handler.keyed_state import Key, pack_key, unpack_key
from actorproc.output.chain import OutputChain
from actorproc.output.checkpoint import Checkpoint, read_checkpoint
from actorproc.runtime.tasks import gather
from actorproc.state.partition_state import MissingState, PartitionState
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

_AGAIN = 20
"""How often a read begins anew because the owner has gone on. Objects stay for an hour, so once is rare."""

_NO_LIMIT = 2**63


@dataclass(frozen=True, slots=True)
class CommittedState:
    """The state of a partition after the commit before `number`."""

    partition: str
    number: int
    names: Mapping[str, Mapping[bytes, bytes]]
    """Packed values by packed key, for each named state that has keys."""
    expires: Mapping[str, Mapping[bytes, float]]
    """Seconds since 1970, of the keys that have a time to live."""
    time: float = 0.0
    """Of that commit."""
    size: int = 0
    """Bytes of keys and values."""

    def get(self, name: str, key: Key) -> Any:
        """The value of a key, or `msgspec.UNSET`."""
        found = self.names.get(name, {}).get(pack_key(key))
        return msgspec.UNSET if found is None else msgpack.decode(found)

    def expiring(self, name: str) -> Mapping[Key, float]:
        """When keys of one named state expire: seconds since 1970."""
        return {unpack_key(key): time for key, time in self.expires.get(name, {}).items()}

    def items(self, name: str) -> Iterator[tuple[Key, Any]]:
        """Keys and values of one named state, in no particular order."""
        for key, value in self.names.get(name, {}).items():
            yield unpack_key(key), msgpack.decode(value)


async def read_state(store: Store, layout: ProcessorLayout, partition: str) -> CommittedState:
    """The committed state of a partition; empty if it was never opened.

    Raises:
        CorruptObject: the checkpoint, a footer or an object is corrupt, or an object is missing.
    """
    missing: MissingState | None = None
    chain = OutputChain(store, layout, partition)
    for _ in range(_AGAIN):
        checkpoint = await read_checkpoint(store, layout, partition)
        if checkpoint is None:
            return CommittedState(partition, 0, {}, {})
        try:
            found = await _walk(store, layout, chain, partition, checkpoint)
        except MissingState as error:
            missing = error
            continue
        if await chain.boundary() <= checkpoint.number:
            return found
    if missing is None:
        raise CorruptObject(layout.boundary(partition), "is beyond the checkpoint: an older checkpoint was restored")
    raise missing.corrupt() from None


async def without_passed_on(store: Store, layout: ProcessorLayout, partitions: Sequence[str]) -> list[str]:
    """Those of the partitions whose state no partition that follows them has taken.

    Raises:
        CorruptObject: a checkpoint is corrupt.
    """
    checkpoints = await gather(partitions, lambda partition: read_checkpoint(store, layout, partition))
    taken = {parent for found in checkpoints.values() if found for parent in found.parents}
    return [partition for partition in partitions if partition not in taken]


async def _walk(
    store: Store, layout: ProcessorLayout, chain: OutputChain, partition: str, checkpoint: Checkpoint
) -> CommittedState:
    state, number, time = PartitionState(store, layout, partition, _NO_LIMIT), checkpoint.number, checkpoint.time
    await state.load(checkpoint.state, checkpoint.stream_time)
    while (commit := await chain.read(number)) is not None:
        await state.follow(number, commit)
        number, time = number + 1, max(time, commit.time)
    state.restored(time)
    return CommittedState(partition, number, *state.snapshot(), time, state.size)


def key_text(key: Key) -> str:
    """A key for people: text as it is, anything else as JSON. The key "7" looks like the key 7."""
    return key if isinstance(key, str) else _json(key)


def value_text(value: Any) -> str:
    """A value as JSON; bytes in base64."""
    return _json(value)


def _json(value: Any) -> str:
    return json.encode(value, enc_hook=str).decode()
