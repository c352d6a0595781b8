"""The protocol of sources without transactions to which dead letters can be replayed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from actorproc.records import Batch


class Appendable(ABC):
    """A source to which records can be appended, each at least once. Subclass it together with `Source`."""

    appended_at_once: int = 500
    """Dead letters of one `append`. If its outcome is unknown, it is repeated, so as many may come twice."""

    def check_appendable(self) -> None:
        """Raises UsageError: appended records would not be read as new records."""

    @abstractmethod
    async def append(self, partition: str, records: Batch, transaction: str) -> Mapping[int, str]:
        """Append records to an open source, except those that the stream refuses for good.

        Args:
            partition: from which they came. A source that chooses partitions by key ignores it.
            records: with key, value, headers and timestamp. Parts that the stream cannot keep are left out.
            transaction: a name that no sender can know. With the header `actorproc.dead_letter.sequence` it names a
                record, in each repetition the same.

        Returns:
            Why records are refused, by index. All others are appended.

        Raises:
            SourceError: some may be appended, and some not.
        """
