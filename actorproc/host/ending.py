"""Running until the end: where each partition should get to, when all of them have, and when to give up on some."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio

from actorproc.errors import CorruptObject, EndNotReached, SourceError, StoreUnavailable
from actorproc.host.supervisor import Supervisor
from actorproc.host.until_end import UntilEnd
from actorproc.layout import ProcessorLayout, named_partitions, natural
from actorproc.output.chain import read_cursor
from actorproc.sources.protocol import End, Source, is_beyond_doubt
from actorproc.store import Store
from actorproc.tasks import gather

END_POLL = 0.5
"""Seconds between looks at partitions of other hosts, at least."""

_EACH = 0.01  # seconds for each of them: however many there are, some hundred requests a second

HOPELESS = 5
"""Failures in a row, with nothing committed in between, after which a partition is not waited for."""

_NAMED = 5  # partitions that a message names
_TOLD_EVERY = 10.0  # seconds between two lines of the log on what is waited for

_ELSEWHERE = "they do not run here: actorproc status tells who has them, how far they are, and what fails"


class Ending:
    """One run until the end. `log`: bound to processor and host."""

    def __init__(self, source: Source, store: Store, layout: ProcessorLayout, log: Any) -> None:
        self._source = source
        self._store = store
        self._layout = layout
        self._log = log
        self._hopeless: dict[str, str] = {}
        self._later: dict[str, End] = {}  # of partitions that were empty at first
        self._endless: dict[str, str] = {}  # partition -> why it cannot be told where it ends

    async def find(self) -> UntilEnd:
        """Where each partition ends now. One that cannot tell, such as for a damaged file, fails alone, in `check`: the
        others have an end to get to.

        Raises:
            SourceError: the source cannot tell its partitions.
            StoreError: the store cannot be used.
        """

        async def end(partition: str) -> End | None:
            try:
                return await self._source.end(partition)
            except (CorruptObject, SourceError) as error:
                self._log.warning("processor.end_unknown", partition=partition, error=str(error))
                self._endless[partition] = str(error)
                return None

        ends = await gather(await self._source.partitions(), end)
        return UntilEnd({partition: found for partition, found in ends.items() if found is not None})

    async def watch(self, supervisor: Supervisor) -> None:
        """Stop it when every partition has reached its end, here (it says so) or elsewhere (the checkpoint does).

        Or when all that is left here fails again and again, or by a mistake in the handler itself. Then it does not wait for
        other hosts, which may be waiting for this one: its leases go to them, and they have another try.
        """
        run, clock = supervisor.until_end, self._store.clock
        told_at = clock.monotonic()
        while left := run.left:
            self._hopeless = supervisor.hopeless(HOPELESS)
            here = left & supervisor.partitions  # of what it runs, one that fails now may have got there before
            if here and here <= self._hopeless.keys():
                break
            with anyio.move_on_after(max(END_POLL, _EACH * len(left - supervisor.partitions))):
                await run.all_reached.wait()
            elsewhere = sorted(left - supervisor.partitions)
            for partition, reached in (await gather(elsewhere, partial(self._has_reached, run.ends))).items():
                if reached:
                    run.note_reached(partition)
            others = sorted(run.left - supervisor.partitions, key=natural)
            if others and clock.monotonic() - told_at >= _TOLD_EVERY:
                told_at = clock.monotonic()
                self._log.info("processor.waiting_for_end", waiting_for=named_partitions(others), why=_ELSEWHERE)
        else:
            self._log.info("processor.reached_end", partitions=len(run.ends))
        supervisor.stop()

    async def _has_reached(self, ends: Mapping[str, End], partition: str) -> bool:
        end = ends[partition]
        try:
            cursor = await read_cursor(self._store, self._layout, partition)
            if cursor is None:
                return False
            if end.sequence is None and not self._source.reached(cursor, end):
                end = await self._later_end(partition)
            if not self._source.reached(cursor, end):
                return False
            if not is_beyond_doubt(self._source, partition, cursor, end):
                if self._source.sequence_before(partition, cursor.position) is not None or cursor.sequence >= 0:
                    return False
                # Nothing was processed: either it began at the end, or it is about to begin.
                return cursor.position != await self._source.start(partition, "earliest")
            if end.sequence is None or cursor.sequence <= end.sequence:
                return True
            now = await self._source.end(partition)  # it has grown, or it has lost what was read
        except (CorruptObject, StoreUnavailable, SourceError) as error:  # its host says what is wrong with it
            self._log.warning("processor.end_unknown", partition=partition, error=str(error))
            return False
        return now.sequence is None or cursor.sequence <= now.sequence

    async def _later_end(self, partition: str) -> End:
        """Of one that was empty: a position cannot be compared, but whoever is at a later end has passed the first one. Once
        there is a record it stays as it is, or a stream that grows would be followed for ever."""
        end = self._later.get(partition) or await self._source.end(partition)
        if end.sequence is not None:
            self._later[partition] = end
        return end

    def check(self, supervisor: Supervisor | None) -> None:
        """After the run.

        Raises:
            EndNotReached: partitions have not got to where they should; names them and why. Or nothing was begun.
        """
        if supervisor is None:
            raise EndNotReached("stopped while starting: nothing was begun")
        run = supervisor.until_end
        if run.lost:
            named = sorted(run.lost, key=natural)[:_NAMED]
            lines = [f"partition {partition}: {run.lost[partition]}" for partition in named]
            raise EndNotReached("\n".join(["rows were lost by the handler's own doing", *lines]))
        everything = run.ends.keys() | self._endless.keys()
        left = sorted(everything - run.reached, key=natural)
        if not left:
            return
        has, it = ("has", "it") if len(left) == 1 else ("have", "they")
        lines = [
            f"{len(left)} of {len(everything)} partition{'' if len(everything) == 1 else 's'} {has} not reached the end {it} had at the start"
        ]
        reasons: dict[str, list[str]] = {}
        for partition in left:
            reasons.setdefault(self._why(partition), []).append(partition)
        lines += [f"{named_partitions(names)}: {why}" for why, names in list(reasons.items())[:_NAMED]]
        if len(reasons) > _NAMED:
            lines.append(f"and {sum(map(len, list(reasons.values())[_NAMED:]))} more")
        lines.append("What is committed stays; the next run goes on from there")
        raise EndNotReached("\n".join(lines))

    def _why(self, partition: str) -> str:
        if partition in self._endless:
            return f"could not tell where it ends: {self._endless[partition]}"
        if partition in self._hopeless:
            return self._hopeless[partition]
        return "not there yet"
