"""Which life of the handler was shown which records, and how each life ended: what at-most-once delivery is held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from actorproc.handler.base import CloseReason
from actorproc.handler.context import PartitionInfo
from actorproc.records import Batch


@dataclass(eq=False, slots=True)
class HandlerInstance:
    """One instance of the handler. `reason`: why it ended; None: it lives, or died without a word."""

    site: PartitionInfo
    reason: CloseReason | None = None

    @property
    def ended_well(self) -> bool:
        """Whether it has said that all it was shown is committed."""
        return self.reason in (CloseReason.STOPPING, CloseReason.HANDOFF)


class HandlerCalls:
    """The lives of the handler in one partition."""

    def __init__(self, broken: Callable[[str], None]) -> None:
        self._broken = broken
        self._lives: dict[
            int, HandlerInstance
        ] = {}  # by the id of the instance, which stays as long as the loop's tasks
        self._all: list[HandlerInstance] = []
        self._shown: dict[int, HandlerInstance] = {}

    def opened(self, instance: object, site: PartitionInfo) -> None:
        self._lives[id(instance)] = life = HandlerInstance(site)
        self._all.append(life)

    def closing(self, instance: object, reason: CloseReason) -> None:
        self._lives.pop(id(instance)).reason = reason

    def shown_once(self, instance: object, batch: Batch) -> None:
        """A batch is shown where no record may be shown a second time."""
        life = self._lives[id(instance)]
        for sequence in batch.sequences:
            if sequence in self._shown:
                before = self._shown[sequence].site
                self._broken(
                    f"record {sequence} is shown on {life.site.host} under epoch {life.site.epoch} "
                    f"and was on {before.host} under epoch {before.epoch}"
                )
            self._shown[sequence] = life

    def was_in_flight(self, sequence: int, host: str, epoch: int) -> bool:
        """Whether the record may be lost: who was shown it, or else had taken it on (`host`, `epoch`), came to a bad end."""
        life = self._shown.get(sequence)
        if life is not None:
            return not life.ended_well
        return any(not life.ended_well for life in self._all if (life.site.host, life.site.epoch) == (host, epoch))
