"""The contract of streams to which dead letters are replayed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pyarrow as pa


class ReplayTarget(Protocol):
    """A stream to which records can be appended.

    Attributes:
        kind: class name of a source that has no identity.
        letters_at_once: of a batch, at most; None: no limit.
        has_transactions: whether a batch that is appended again is appended once.
    """

    url: str
    identity: str
    kind: str
    letters_at_once: int | None
    has_transactions: bool

    def has_partition(self, partition: str) -> bool:
        """Whether the stream has this partition."""
        ...

    async def append(self, transaction: str, batch: int, partition: str, records: pa.RecordBatch) -> None:
        """Append the records as batch number `batch` of the transaction, unless that was done before.

        A stream without transactions appends them again.

        Raises:
            StoreUnavailable, SourceError, HandlerError: the outcome is unknown; run it again.
        """
        ...

    async def readers(self) -> list[str]:
        """Names of the known readers, which get the records again."""
        ...


class Replayable(ABC):
    """A source to which dead letters are replayed in a way of its own, such as a transaction. See also `Appendable`."""

    @abstractmethod
    def replay_target(self) -> AbstractAsyncContextManager[ReplayTarget]:
        """The stream of this source, which is not open yet.

        Raises, when it is entered:
            UsageError, SourceError: it cannot be opened.
        """
