"""The setting `delivery`: whether a handler may see a record again, and the consequences."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from actorproc.config.settings import Settings
from actorproc.records import Cursor


@dataclass(frozen=True, slots=True)
class DeliveryMode:
    """At least once: a record is committed once it is processed, so a failed one is tried again.

    At most once: a batch counts as processed before the handler sees it. So no record is tried again, and a partition
    does not stop for the handler's errors: the rest of its batch would be lost.
    """

    repeats: bool = True
    """Whether the handler may see a record again."""

    @classmethod
    def of(cls, settings: Settings) -> DeliveryMode:
        return cls(settings.delivery == "at-least-once")

    async def begin(self, go_ahead: Callable[[Cursor], Awaitable[None]], cursor: Cursor) -> None:
        """The handler is about to get the records up to `cursor`."""
        if not self.repeats:
            await go_ahead(cursor)

    def keeps_early(self, settings: Settings) -> bool:
        """Whether processed records are committed when the partition fails: otherwise only the handler commits."""
        return settings.auto_commit or not self.repeats

    def dead_letter_share(self, settings: Settings) -> float:
        """Share of dead letters at which the partition stops."""
        return settings.dead_letter_limit if self.repeats else 1.0
