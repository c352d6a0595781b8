"""Running until the end: where each partition should get to, when all of them have, and when to give up on some."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio

from actorproc.actor import gather
from actorproc.errors import EndNotReached, SourceError, StoreUnavailable
from actorproc.layout import ProcessorLayout
from actorproc.output.chain import read_cursor
from actorproc.sources.protocol import End, Source
from actorproc.status import natural
from actorproc.store import Store
from actorproc.supervisor import Supervisor

END_POLL = 0.5
"""Seconds between looks at partitions of other hosts, at least."""

_EACH = 0.01  # seconds for each of them: however many there are, some hundred requests a second

HOPELESS = 5
"""Failures in a row, with nothing committed in between, after which a partition is not waited for."""

_NAMED = 5  # partitions that a message names


async def find_ends(source: Source) -> dict[str, End]:
    """Where each partition ends now.

    Raises:
        SourceError: the source cannot tell.
    """
    ends: dict[str, End] = {}

    async def find(partition: str) -> None:
        ends[partition] = await source.end(partition)

    async with anyio.create_task_group() as tasks:
        for partition in await source.partitions():
            tasks.start_soon(find, partition)
    return ends


class Ending:
    """One run until the end. `log`: bound to processor and host."""

    def __init__(self, source: Source, store: Store, layout: ProcessorLayout, log: Any) -> None:
        self._source = source
        self._store = store
        self._layout = layout
        self._log = log
        self._hopeless: dict[str, str] = {}

    async def watch(self, supervisor: Supervisor) -> None:
        """Stop it when every partition has reached its end, here (it says so) or elsewhere (the checkpoint does).

        Or when all that is left here fails again and again. What other hosts have left is then not waited for: they
        might wait for this one, too, and have another try at what it leaves to them.
        """
        ends = supervisor.ends
        while left := ends.keys() - supervisor.reached:
            self._hopeless = supervisor.failing(HOPELESS)
            if self._hopeless and left & supervisor.partitions <= self._hopeless.keys():
                break
            with anyio.move_on_after(max(END_POLL, _EACH * len(left - supervisor.partitions))):
                await supervisor.all_reached.wait()
            elsewhere = sorted(left - supervisor.partitions)
            for partition, reached in (await gather(elsewhere, partial(self._has_reached, ends))).items():
                if reached:
                    supervisor.note_reached(partition)
        else:
            self._log.info("processor.reached_end", partitions=len(ends))
        supervisor.stop()

    async def _has_reached(self, ends: Mapping[str, End], partition: str) -> bool:
        end = ends[partition]
        try:
            cursor = await read_cursor(self._store, self._layout, partition)
            if cursor is None or not self._source.reached(cursor, end):
                return False
            if end.sequence is None or cursor.sequence <= end.sequence:
                return True
            now = await self._source.end(partition)  # it has grown, or it has lost what was read
        except (StoreUnavailable, SourceError) as error:
            self._log.warning("processor.end_unknown", partition=partition, error=str(error))
            return False
        return now.sequence is None or cursor.sequence <= now.sequence

    def check(self, supervisor: Supervisor | None) -> None:
        """After the run.

        Raises:
            EndNotReached: partitions have not got to where they should; names them and why. Or nothing was begun.
        """
        if supervisor is None:
            raise EndNotReached("stopped while starting: nothing was begun")
        ends = supervisor.ends
        left = sorted(ends.keys() - supervisor.reached, key=natural)
        if not left:
            return
        lines = [f"{len(left)} of {len(ends)} partitions have not reached the end they had at the start"]
        for partition in left[:_NAMED]:
            why = self._hopeless.get(partition)
            failed = f"failed {HOPELESS} times in a row without getting on: {why}" if why else "is not there yet"
            lines.append(f"partition {partition} {failed}")
        if len(left) > _NAMED:
            lines.append(f"and {len(left) - _NAMED} more")
        lines.append("What is committed stays; the next run goes on from there")
        raise EndNotReached("\n".join(lines))
