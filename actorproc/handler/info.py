"""`PartitionInfo`: the partition that a handler works for, as `opened`, `committed` and `closing` get it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from actorproc.errors import HandlerError
from actorproc.handler.decoder import Decoder


@dataclass(slots=True, eq=False)
class PartitionInfo:
    """The partition that a handler works for; the same for all its batches."""

    processor: str
    host: str
    partition: str
    epoch: int
    """Grows with each change of owner. Send it along with side effects, so that they can be fenced."""
    options: Any = None
    """The handler's `Options`, filled."""
    shared: Any = None
    """The object that the handler class's `shared` yielded, one for all partitions of the host."""
    log: Any = None
    """A structlog logger with processor, host, partition and epoch bound."""
    decoder: Decoder = field(default=None, repr=False)  # type: ignore[assignment]  # every host has one
    """Decodes values as the setting `decode` says; `ctx.decode` and `ctx.decode_arrow` use it."""
    output_schema: pa.Schema = field(default=None, repr=False)
    """Columns of the output, without `_sequence`."""
    processor_id: str = ""
    """Differs from that of every other processor; another one if the processor is deleted and created again."""
    resets: Mapping[str, int] = field(default_factory=dict)
    """The latest resets, oldest first: id -> sequence up to which the partition was committed before it. Its records up
    to there may come again."""
    committed: int = -1
    """Sequence up to which the partition was committed when it started here, or when the attempt began."""
    key_decoder: Decoder | None = field(default=None, repr=False)
    """Decodes keys as the setting `decode_key` says; `ctx.decode_key` uses it."""

    _commit: Callable[[], Awaitable[None]] | None = field(default=None, repr=False)

    async def commit(self) -> None:
        """Commit everything that is processed. Only in `closing`, for the reasons STOPPING, HANDOFF and ENDED.

        Raises:
            HandlerError: nothing can be committed here, or this host has lost the partition, or it has failed.
            Fenced: another host runs this partition; nothing was committed.
        """
        if self._commit is None:
            raise HandlerError(
                "ctx.commit() outside of process: in closing alone, unless the partition was lost or has failed"
            )
        await self._commit()

    def _copy(self, info: PartitionInfo) -> None:
        """Take all fields of `info`."""
        for name in PartitionInfo.__slots__:
            setattr(self, name, getattr(info, name))
