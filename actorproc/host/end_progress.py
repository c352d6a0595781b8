"""How far a run until the end has got, as one host knows it."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from actorproc.sources.protocol import End


class UntilEnd:
    """Of a run without an end, only what was lost.

    Args:
        ends: where each partition should get to, on whichever host.
    """

    def __init__(self, ends: Mapping[str, End] | None = None) -> None:
        self.ends = ends or {}
        self.reached: set[str] = set()
        """Partitions that have got there, and are committed up to there."""
        self.all_reached = anyio.Event()
        self.lost: dict[str, str] = {}
        """Partitions of which the handler has lost rows on this host -> how."""

    @property
    def left(self) -> set[str]:
        """Partitions that have not got there."""
        return self.ends.keys() - self.reached

    def ahead(self, partition: str) -> End | None:
        """Where it is still to get to."""
        return None if partition in self.reached else self.ends.get(partition)

    def note_reached(self, partition: str) -> None:
        self.reached.add(partition)
        if len(self.reached) >= len(self.ends) and not self.left:
            self.all_reached.set()

    def note_lost(self, partition: str, how: str) -> None:
        self.lost[partition] = how
