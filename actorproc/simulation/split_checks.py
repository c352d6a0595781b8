"""Invariants of partitions that end: order across parents and children, and the group's statements about them."""

from __future__ import annotations

from collections.abc import Callable

from actorproc.group.membership import GroupDocument
from actorproc.simulation.output_checks import OutputChecks
from actorproc.simulation.streams import KnownStream


class SplitChecks:
    """Checks each call of a handler and each group document.

    Args:
        checks_of: returns the checks of a partition's chain.
        broken: called with each invariant that does not hold.
    """

    def __init__(
        self, stream: KnownStream, checks_of: Callable[[str], OutputChecks], broken: Callable[[str], None]
    ) -> None:
        self._stream = stream
        self._checks_of = checks_of
        self._broken = broken
        self._document = GroupDocument.of()

    def handler_called(self, partition: str) -> None:
        """A handler got a batch: all records of the parents must be committed, if this processor knows the parents."""
        for parent in self._stream.parents(partition):
            known = parent in self._document.leases or self._stream.is_listed(parent)
            committed, last = self._checks_of(parent).committed_to(), self._stream.last(parent)
            if known and committed < last and not self._is_sealed(parent):
                self._broken(
                    f"partition {partition} is processed, and {parent} is committed up to {committed} of {last}"
                )

    def group_written(self, document: GroupDocument) -> None:
        """The group document was replaced."""
        before, self._document = self._document, document
        for partition in document.leases.keys() - before.leases.keys():
            if followers := [name for name in before.leases if partition in self._stream.parents(name)]:
                self._broken(f"group: partition {partition} begins after {followers}, which follow it")
        for partition in document.ended.keys() - before.ended.keys():
            checkpoint = self._checks_of(partition).checkpoint
            if checkpoint is None or not checkpoint.ended:
                self._broken(
                    f"group: partition {partition} has ended, and its checkpoint does not say so: {checkpoint}"
                )

    def expected(self) -> dict[str, int]:
        """Partitions that must be processed, and up to which sequence."""
        names = [name for name in self._stream.names() if self._stream.is_listed(name) or name in self._document.leases]
        return {name: -1 if self._stream.is_gone(name) else self._stream.last(name) for name in names}

    def unsettled(self) -> str | None:
        """Why not all partitions that are over are closed; None if they are."""
        over = {parent for name in self._stream.names() for parent in self._stream.parents(name)}
        for name in sorted(over & self._document.leases.keys()):
            if self._document.leases[name].closed != "ended":
                return f"partition {name} has not ended"
        return None

    def _is_sealed(self, partition: str) -> bool:
        commits = self._checks_of(partition).commits
        return bool(commits) and commits[-1].vanished and self._stream.is_gone(partition)
