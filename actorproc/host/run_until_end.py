"""Run until the end: stops the host once each partition has passed the end that it had at the start."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from actorproc.errors import EndNotReached
from actorproc.host.end_message import end_not_reached, named, rows_lost
from actorproc.host.ends import UNREADABLE, Ends
from actorproc.host.ends_elsewhere import EndsElsewhere
from actorproc.host.ends_here import EndsHere
from actorproc.host.supervisor import Supervisor
from actorproc.runtime.clock import SHORTEST_WAIT
from actorproc.runtime.logger import REPEAT_INTERVAL
from actorproc.sources.protocol import Source
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

STORE_POLL = 0.5
"""Seconds between two looks at the checkpoints of other hosts' partitions, at least."""

_STORE_POLL_EACH = 0.01  # seconds for each of them: about a hundred requests a second, however many there are


class RunUntilEnd:
    """One run with an end.

    Args:
        log: bound to processor and host.
        needs_owner: whether only a host that runs a partition can finish it: by timers that fire, or by sinks.
    """

    def __init__(
        self, source: Source, store: Store, layout: ProcessorLayout, host: str, log: Any, *, needs_owner: bool = False
    ) -> None:
        self.ends = Ends(source, store.limits, log)
        self._clock, self._logger = store.clock, log
        self._needs_owner = needs_owner
        self._elsewhere = EndsElsewhere(self.ends, store, layout, host, log, needs_owner=needs_owner)
        self._here: EndsHere | None = None
        self._supervisor: Supervisor | None = None
        self._has_ended = False  # by itself: nobody has stopped this host

    async def watch(self, supervisor: Supervisor) -> None:
        """Stop `supervisor` once every partition has passed its end, or all that are left have failed for good.

        If all that are left on this host have failed for good, it does not wait for the other hosts, which may be
        waiting for this one: they get its leases, and try those partitions once more.
        """
        self._supervisor, partitions, changes = supervisor, supervisor.partitions, supervisor.partitions.changes
        here = self._here = EndsHere(self.ends, partitions, needs_owner=self._needs_owner)
        poll_at = self._clock.monotonic()
        report_at = poll_at + REPEAT_INTERVAL
        while True:
            if self._clock.monotonic() >= poll_at:
                if elsewhere := self.ends.waiting - partitions.keys():
                    await self._elsewhere.look(elsewhere)
                poll_at = self._clock.monotonic() + max(STORE_POLL, _STORE_POLL_EACH * len(elsewhere))
            if self._clock.monotonic() >= report_at:
                report_at = self._clock.monotonic() + REPEAT_INTERVAL
                await self._report(partitions.keys())
            while changed := changes.take():
                for partition in sorted(changed & self.ends.waiting):
                    if partition in partitions:
                        self._elsewhere.forget(partition)
                    await here.look(partition)
            if self._is_over(partitions.keys(), here.failed.keys()):
                break
            await changes.wait(max(SHORTEST_WAIT, min(poll_at, report_at) - self._clock.monotonic()))
        self.ends.waiting -= self._elsewhere.seen_to - partitions.keys()
        await self._finish_sinks(supervisor)
        if not (self.ends.waiting or self.ends.unknown):
            self._logger.info("processor.reached_end", partitions=len(self.ends.found))
        self._has_ended = True
        supervisor.stop()

    async def _finish_sinks(self, supervisor: Supervisor) -> None:
        """Wait until sinks have the rest of partitions that have ended: no host runs these."""
        closed = supervisor.closed
        while closed is not None and not supervisor.partitions.closing:
            try:
                names = await self._elsewhere.closed()
            except UNREADABLE:
                await self._clock.sleep(STORE_POLL)
                continue
            await closed.finish(names, lambda: supervisor.partitions.closing)
            return

    def _is_over(self, running: Set[str], failed: Set[str]) -> bool:
        """Whether there is nothing to wait for. `running`, `failed`: partitions of this host."""
        waiting = self.ends.waiting
        if any(partition in running and partition not in failed for partition in waiting):
            return False
        return bool(waiting & running) or waiting - self._elsewhere.seen_to <= self._elsewhere.failed.keys()

    async def _report(self, running: Set[str]) -> None:
        """Log which partitions are waited for, and look which of them other hosts report as failed for good."""
        here, elsewhere = self.ends.waiting & running, self.ends.waiting - running
        if self.ends.waiting:
            self._logger.info("processor.waiting_for_end", here=named(here), elsewhere=named(elsewhere))
        if elsewhere:
            await self._elsewhere.look_for_failed(elsewhere)

    def check(self, signal: str | None = None) -> None:
        """Call it after the run.

        Args:
            signal: name of the signal that stopped it.

        Raises:
            EndNotReached: names the partitions that have not reached their end, and why. Or rows were lost.
        """
        if self._supervisor is None:
            by = "" if signal is None else f" by {signal}"
            raise EndNotReached(f"stopped{by} while starting: nothing was begun")
        if lost := self._supervisor.partitions.rows_lost:
            raise EndNotReached(rows_lost(lost))
        if self.ends.waiting or self.ends.unknown:
            stopped = None if self._has_ended else signal or "stop()"
            here = {} if self._here is None else self._here.behind_sinks() | self._here.failed
            raise EndNotReached(end_not_reached(self.ends, self._elsewhere.failed | here, stopped))
