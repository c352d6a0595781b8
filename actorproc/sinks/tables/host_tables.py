"""The tables of one host: their committers, run when it is this host's turn, and once more at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio

from actorproc.errors import ActorprocError
from actorproc.runtime.clock import Clock
from actorproc.sinks.tables.committer import TableCommitter, TableStatistics

LAST_TURN = 10.0
"""Seconds that a host which is stopped takes for the last transaction of its tables."""

_AGAIN = 1.0  # seconds between two tries at the end of a run


class HostTables:
    """The committers of all tables of a host."""

    def __init__(self, committers: Sequence[TableCommitter], clock: Clock, log: Any) -> None:
        self.each = tuple(committers)
        self._clock, self._logger = clock, log

    def statistics(self) -> tuple[TableStatistics, ...]:
        """A snapshot of each."""
        return tuple(committer.statistics() for committer in self.each)

    def told(self, partition: str) -> None:
        """A host says that the partition has a new commit."""
        for committer in self.each:
            committer.told(partition)

    async def run(self, is_first: Callable[[], bool]) -> None:
        """Make transactions until cancelled. `is_first`: whether it is this host's turn."""
        async with anyio.create_task_group() as tasks:
            for committer in self.each:
                tasks.start_soon(committer.run, is_first)

    async def finish(self, patience: float | None = None) -> None:
        """Bring the tables up to date, whoever's turn it is: the last host to end has all commits.

        Args:
            patience: of a run until the end: seconds in which it must succeed. None: once, as far as time allows.

        Raises:
            ActorprocError: a table is not up to date at the end of a run until the end.
        """
        if patience is None:
            with anyio.move_on_after(LAST_TURN):
                for committer in self.each:
                    await committer.turn(ask_all=True)
            return
        for committer in self.each:
            deadline = self._clock.monotonic() + patience
            while not await committer.turn(ask_all=True):
                if self._clock.monotonic() >= deadline:
                    raise ActorprocError(
                        f"everything is committed, but the table of sink {committer.name} is not up to date: "
                        f"{committer.statistics().error}. The next run brings it up to date"
                    )
                await self._clock.sleep(_AGAIN)
