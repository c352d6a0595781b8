"""Running until the end: where each partition should get to, when all of them have, and when to give up on some."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import anyio

from actorproc.errors import CorruptObject, EndNotReached, SourceError
from actorproc.host.end_progress import UntilEnd
from actorproc.host.remote_progress import RemoteProgress
from actorproc.host.supervisor import Supervisor
from actorproc.runtime.logger import REPEAT_INTERVAL
from actorproc.runtime.tasks import gather
from actorproc.sources.protocol import End, Source, with_deadline
from actorproc.storage.names import ProcessorLayout, named_partitions, natural
from actorproc.storage.store import Store

END_POLL = 0.5
"""Seconds between looks at partitions of other hosts, at least."""

_EACH = 0.01  # seconds for each of them: however many there are, some hundred requests a second

_NAMED = 5  # partitions that a message names

_HERE = (
    "they run here, and nothing new has come of them since the last such line: the handler is at a batch or in opened(), or the source "
    "gives nothing"
)
_ELSEWHERE = "they do not run here: actorproc status tells who has them, how far they are, and what fails"


class Ending:
    """One run until the end. `log`: bound to processor and host."""

    def __init__(self, source: Source, store: Store, layout: ProcessorLayout, log: Any) -> None:
        self._source = source
        self._clock, self._limits = store.clock, store.limits
        self._log = log
        self._elsewhere = RemoteProgress(source, store, layout, log)
        self._hopeless: dict[str, str] = {}
        self._seen: dict[str, tuple[object, ...]] = {}  # partition -> how far it was when that was looked at last
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
                return await with_deadline(self._source.end(partition), "end", self._limits)
            except (CorruptObject, SourceError) as error:
                self._log.warning("processor.end_unknown", partition=partition, error=str(error))
                self._endless[partition] = str(error)
                return None

        ends = await gather(await with_deadline(self._source.partitions(), "partitions", self._limits), end)
        return UntilEnd({partition: found for partition, found in ends.items() if found is not None})

    async def watch(self, supervisor: Supervisor) -> None:
        """Stop it when every partition has reached its end, here (it says so) or elsewhere (the checkpoint does).

        Or when all that is left here fails again and again, or by a mistake in the handler itself. Then it does not wait for
        other hosts, which may be waiting for this one: its leases go to them, and they have another try. Or when all that is
        left does so, here and on hosts that go on with it.
        """
        run, clock = supervisor.until_end, self._clock
        told_at = clock.monotonic()

        async def has_reached(partition: str) -> bool:
            return await self._elsewhere.has_reached(partition, run.ends[partition])

        while left := run.left:
            hopeless, own = supervisor.hopeless(), supervisor.partitions
            self._hopeless = {p: why for p, why in self._elsewhere.hopeless.items() if p not in own} | hopeless
            here = left & own  # of what it runs, one that fails now may have got there before
            if (here and here <= hopeless.keys()) or left <= self._hopeless.keys():
                break
            with anyio.move_on_after(max(END_POLL, _EACH * len(left - own))):
                await run.all_reached.wait()
            elsewhere = sorted(left - supervisor.partitions)
            for partition, reached in (await gather(elsewhere, has_reached)).items():
                if reached:
                    run.note_reached(partition)
            if clock.monotonic() - told_at < REPEAT_INTERVAL:
                continue
            told_at = clock.monotonic()
            others = run.left - supervisor.partitions
            self._tell(others, _ELSEWHERE)
            self._tell(run.left & self._quiet(supervisor), _HERE)
            if others:
                await self._elsewhere.listen(others)
        else:
            self._log.info("processor.reached_end", partitions=len(run.ends))
        supervisor.stop()

    def _tell(self, partitions: Collection[str], why: str) -> None:
        if partitions:
            named = named_partitions(sorted(partitions, key=natural))
            self._log.info("processor.waiting_for_end", waiting_for=named, why=why)

    def _quiet(self, supervisor: Supervisor) -> set[str]:
        """Partitions here that have not got on since this was asked last."""
        before = self._seen
        self._seen = {p.partition: (p.epoch, p.state, p.records, p.cursor) for p in supervisor.statistics().partitions}
        return {partition for partition, now in self._seen.items() if before.get(partition) == now}

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
