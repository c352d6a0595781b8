"""The contract of streams to which dead letters are replayed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

import pyarrow as pa

from actorproc.records import Batch


class Outcome(NamedTuple):
    """The outcome of a batch.

    Attributes:
        refused: why records are refused for good, by index. The others are appended, unless the batch is void.
        is_void: nothing of the batch is in the stream, or will ever be.
        reason: of a void batch: why, where it is not known which records are refused.
    """

    refused: Mapping[int, str] = {}
    is_void: bool = False
    reason: str = ""


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

    async def append(self, transaction: str, batch: int, partition: str, records: pa.RecordBatch) -> Outcome:
        """Append the records as batch number `batch` of the transaction, unless that was done before.

        A stream without transactions appends them again. If one with transactions refuses a record, the batch is void.

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


class Appendable(ABC):
    """A source to which records can be appended, each at least once. Subclass it together with `Source`."""

    appended_at_once: int = 500
    """Dead letters of one `append`. If its outcome is unknown, it is repeated, so as many may come twice."""

    def check_appendable(self) -> None:
        """Raises UsageError: what is appended would not be read as a new record."""

    @abstractmethod
    async def append(self, partition: str, records: Batch, transaction: str) -> Mapping[int, str]:
        """Append records to an open source, except those that the stream refuses for good.

        Args:
            partition: from which they came. A source that chooses partitions by key ignores it.
            records: with key, value, headers and timestamp. What the stream cannot keep is left out.
            transaction: a name that no sender can know. With the header `actorproc.dead_letter.sequence` it names a
                record, in each repetition the same.

        Returns:
            Why records are refused, by index. All others are appended.

        Raises:
            SourceError: some may be appended, and some not.
        """
