"""Records which handler instance got which records and how each instance ended, to check at-most-once delivery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from actorproc.handler.base import CloseReason
from actorproc.handler.context import PartitionInfo
from actorproc.records import Batch


@dataclass(eq=False, slots=True)
class HandlerInstance:
    """One handler instance. `reason` is that of its `closing`; None while it runs, or if it crashed."""

    site: PartitionInfo
    reason: CloseReason | None = None

    @property
    def ended_well(self) -> bool:
        """Whether everything that it processed was committed when it ended."""
        return self.reason in (CloseReason.STOPPING, CloseReason.HANDOFF)


class HandlerCalls:
    """The handler instances of one partition."""

    def __init__(self, broken: Callable[[str], None]) -> None:
        self._broken = broken
        # By the handler's id, which stays unique because the loop keeps all tasks.
        self._running: dict[int, HandlerInstance] = {}
        self._all: list[HandlerInstance] = []
        self._processed_by: dict[int, HandlerInstance] = {}

    def opened(self, handler: object, site: PartitionInfo) -> None:
        self._running[id(handler)] = instance = HandlerInstance(site)
        self._all.append(instance)

    def closing(self, handler: object, reason: CloseReason) -> None:
        self._running.pop(id(handler)).reason = reason

    def batch_processed(self, handler: object, batch: Batch) -> None:
        """A handler got a batch of which no record may be processed twice."""
        instance = self._running[id(handler)]
        for sequence in batch.sequences:
            if sequence in self._processed_by:
                before = self._processed_by[sequence].site
                self._broken(
                    f"record {sequence} is processed on {instance.site.host} under epoch {instance.site.epoch} "
                    f"and was processed on {before.host} under epoch {before.epoch}"
                )
            self._processed_by[sequence] = instance

    def was_in_flight(self, sequence: int, host: str, epoch: int) -> bool:
        """Whether the record may be lost: the handler instance that had it did not end well."""
        instance = self._processed_by.get(sequence)
        if instance is not None:
            return not instance.ended_well
        return any(
            not instance.ended_well
            for instance in self._all
            if (instance.site.host, instance.site.epoch) == (host, epoch)
        )
