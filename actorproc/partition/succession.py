"""How keyed state goes from a partition that ends to those that follow it: which keys, and from which parents."""

from __future__ import annotations

from collections.abc import Mapping

from actorproc.handler.base import PartitionHandler
from actorproc.handler.info import PartitionInfo
from actorproc.handler.keyed_state import Key
from actorproc.output.checkpoint import Checkpoint, read_checkpoint
from actorproc.partition.handler_hooks import in_time
from actorproc.partition.host_context import HostContext
from actorproc.records import Cursor
from actorproc.runtime.user_code import user_code
from actorproc.sources.protocol import list_partitions
from actorproc.state.inheritance import IsHere, first_checkpoint


class Succession:
    """The parents of one partition, and the partitions to which its keys go.

    Args:
        handler: knows to which records a key of state belongs.
    """

    def __init__(self, context: HostContext, info: PartitionInfo, handler: PartitionHandler) -> None:
        self._source, self._store, self._layout = context.source, context.store, context.layout
        self._settings, self._info = context.settings, info
        self._handler = handler

    @property
    def _knows_keys(self) -> bool:
        return self._source.knows_keys and type(self._handler).record_key is not PartitionHandler.record_key

    async def parents(self) -> Mapping[str, Checkpoint]:
        """Checkpoints of the partitions that this one follows, as far as they were processed."""
        async with in_time(self._settings, "partitions() of the source has not ended", "infrastructure"):
            names = (await list_partitions(self._source)).get(self._info.partition, ())
        found = {name: await read_checkpoint(self._store, self._layout, name) for name in names}
        return {name: kept for name, kept in found.items() if kept is not None}

    async def first_checkpoint(self, position: str, parents: Mapping[str, Checkpoint]) -> Checkpoint:
        """The first checkpoint of the partition, with the state that it takes from its parents."""
        beginning = Checkpoint(self._info.epoch, 0, Cursor(position))
        if not parents:
            return beginning
        is_here = await self._is_here()
        return await first_checkpoint(self._store, self._layout, self._info.partition, beginning, parents, is_here)

    async def _is_here(self) -> IsHere | None:
        if not self._knows_keys:
            return None
        has = await self._source.keys_of(self._info.partition)

        def is_here(key: Key) -> bool | None:
            found = self._record_key(key)
            return None if found is None else has(found)

        return is_here

    def goes_on(self, key: Key) -> bool:
        """Whether a timer of this key goes on, once the partition has ended, in the one that gets its records."""
        return self._knows_keys and self._record_key(key) is not None

    def _record_key(self, key: Key) -> bytes | None:
        with user_code("record_key"):
            found = self._handler.record_key(key, self._info)
        return found.encode() if isinstance(found, str) else found
