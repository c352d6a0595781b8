"""The partitions of the source, as this host has listed them last."""

from __future__ import annotations

from math import inf
from typing import Any

from actorproc.errors import SourceError
from actorproc.partition.host_context import HostContext
from actorproc.runtime.error_text import error_message
from actorproc.sources.protocol import Parents, list_partitions, with_deadline

_NONE_LISTED = (
    "nothing is processed until the source lists partitions; it is asked again each partition_refresh_interval: check "
    "that it is the right source, and that its credentials may read it"
)


class PartitionList:
    """Lists the partitions each `partition_refresh_interval`, and whenever the group needs a newer list."""

    def __init__(self, context: HostContext, log: Any) -> None:
        self._context = context
        self._logger = log
        self._known: Parents | None = None
        """None: the source has never listed its partitions."""
        self._listed_at = -inf
        self._warned_of_none = False

    def expire(self) -> None:
        """List anew at the next call: a partition has ended, so others follow it."""
        self._listed_at = -inf

    async def __call__(self, since: float = -inf) -> Parents:
        """The partitions as they were listed at `since` or later. Without any if the source cannot list them now.

        Raises:
            SourceError: the source has never listed its partitions.
        """
        age = self._context.clock.monotonic() - self._listed_at
        if (
            self._known is not None
            and self._listed_at >= since
            and age < self._context.settings.partition_refresh_interval
        ):
            return self._known
        try:
            return await self.anew()
        except SourceError as error:  # go on with the partitions that are known
            if self._known is None:
                raise
            self._logger.warning("supervisor.partitions_failed", error=error_message(error))
            return self._known if self._listed_at >= since else {}

    async def anew(self) -> Parents:
        """The partitions as they are listed now.

        Raises:
            SourceError: the source cannot list them.
        """
        now = self._context.clock.monotonic()
        try:
            # Without retries: until the source answers, no lease is taken and none handed over.
            listing = list_partitions(self._context.source)
            known = await with_deadline(listing, "partitions", self._context.store.limits, retries=False)
        except Exception as error:  # of the user's source
            raise SourceError(error_message(error)) from error
        self._known, self._listed_at = known, now
        if not known and not self._warned_of_none:
            self._warned_of_none = True
            self._logger.warning("processor.no_partitions", source=str(self._context.source), what_to_do=_NONE_LISTED)
        return known
