"""Logs failures of partitions. An error that many partitions share is logged once, with its traceback, and counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from actorproc.errors import ActorprocError, HandlerMisuse, fault_of
from actorproc.host.partition_slot import PartitionSlot
from actorproc.runtime.clock import Clock
from actorproc.runtime.error_text import user_traceback
from actorproc.runtime.logger import LogThrottle

_REMEMBERED = 100  # errors; texts may differ each time


@dataclass(slots=True)
class _SameError:
    repeats: LogThrottle = field(default_factory=LogThrottle)
    partitions: set[str] = field(default_factory=set)
    is_new: bool = True


class FailureLog:
    """The failures of all partitions of a host, by the text of the error."""

    def __init__(self, clock: Clock, log: Any) -> None:
        self._clock = clock
        self._logger = log
        self._seen: dict[str, _SameError] = {}

    def log(self, slot: PartitionSlot, error: Exception, delay: float) -> None:
        """Log it, unless the same error was logged a short while ago. `delay`: seconds until the restart."""
        text = slot.error or ""
        if text not in self._seen and len(self._seen) >= _REMEMBERED:
            self._seen.pop(next(iter(self._seen)))
        same = self._seen.setdefault(text, _SameError())
        same.partitions.add(slot.partition)
        if times := same.repeats.due(text, self._clock.monotonic()):
            self._logger.error(
                "partition.failed", partition=slot.partition, epoch=slot.epoch, times=times,
                partitions=len(same.partitions), again_in=round(delay, 3), fault=fault_of(error), error=text,
                exc_info=_traceback(error) if same.is_new else None,
            )  # fmt: skip
            same.is_new = False
            same.partitions.clear()


def _traceback(error: Exception) -> Any:
    """The user's part of the traceback. None for an error of actorproc, whose text is enough."""
    cause = error.__cause__ or error  # the error of the handler behind ours
    in_handler = isinstance(cause, HandlerMisuse) and user_traceback(cause) is not cause.__traceback__
    if isinstance(cause, (ActorprocError, OSError)) and not in_handler:
        return None
    return type(cause), cause, user_traceback(cause)
