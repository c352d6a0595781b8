"""Checks that a source keeps the rules of docs/sources.md, by repeated reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple, NoReturn, TypeVar

import anyio
import anyio.lowlevel

from actorproc.errors import SourceError, UsageError
from actorproc.records import Cursor
from actorproc.sources.guard import guard_source
from actorproc.sources.protocol import End, Source, Start, is_certainly_at_end, list_partitions
from actorproc.sources.queue_protocol import QueueSource
from actorproc.testing.queue_check import NEEDED, check_queue
from actorproc.testing.source_reader import Fact, InvalidSource, Reading, reading

T = TypeVar("T")
Add = Callable[[], Awaitable[object]]

_MOST_PLACES = 20  # positions of a partition from which it is read again


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """Result of a check that found no violation."""

    records: dict[str, int]
    """Number of records that were read, by partition."""
    positions: dict[str, list[str]]
    """Positions from which each partition was read again: those of `start` and `end`, and up to 20 of `read`."""
    not_checked: list[str]
    """Rules that could not be checked, with the reason."""


class _Place(NamedTuple):
    position: str
    before: int  # records before it, which may come again
    whence: str = "read()"


@dataclass(slots=True)
class _Partition:
    name: str
    end: End
    reading: Reading
    places: list[_Place]
    facts: list[Fact] = field(default_factory=list)
    whole: bool = False  # all of it is in `facts`

    @property
    def last(self) -> int:
        return self.facts[-1].sequence if self.facts else -1

    def take(self, facts: list[Fact]) -> None:
        self.facts += facts
        self.places.append(_Place(self.reading.position, len(self.facts)))


async def check_source(
    source: Source | Callable[[], Source],
    *,
    add: Add | None = None,
    most_records: int = 1000,
    patience: float = 10,
) -> CheckedSource:
    """Check that a source keeps the rules of docs/sources.md. Nothing else may append to the stream meanwhile.

    Args:
        source: a source, or better a function that makes one: then a new instance must also resume at the positions of
            the first one.
        add: appends a record to any partition of the stream. A reader at the end must get it. Called once; for queues,
            whose first messages are acknowledged, four times.
        most_records: records that are read of each partition. If it has more, its `end` is not compared with them.
        patience: seconds to wait for a chunk, an answer, or the end of a cancelled reader. It must be longer than any
            pause of the source. `open` and `close` have no limit.

    Raises:
        InvalidSource: the source breaks a rule.
        UsageError: the source has no records, or `source` is not a source.
    """
    given = source if isinstance(source, Source) else None
    if given is None and not callable(source):
        raise UsageError(f"check_source({source!r:.80}): a source, or a function without arguments that makes one")
    async with _opened(given or source(), "", patience) as check:  # type: ignore[operator]
        if isinstance(check.source, QueueSource):
            return await check.queues(check.source, add)
        identity, partitions = check.source.identity, await check.once(add, most_records)
        await check.again(partitions)
        not_checked = check.not_checked
    if given is not None:
        not_checked.append("whether its positions are good in a new instance: give a function that makes one")
    else:
        async with _opened(source(), " (a new instance)", patience) as check:  # type: ignore[operator]
            if check.source.identity != identity:
                check.fail(f"identity is {check.source.identity!r}, and was {identity!r}: no processor could continue")
            check.none_gone([part.name for part in partitions], await check.names())
            await check.again(partitions)
    positions = {part.name: list(dict.fromkeys(place.position for place in part.places)) for part in partitions}
    return CheckedSource({part.name: len(part.facts) for part in partitions}, positions, not_checked)


@asynccontextmanager
async def _opened(source: Source, which: str, patience: float) -> AsyncIterator[_Check]:
    if not isinstance(source, Source):
        raise UsageError(f"check_source: the function that makes a source returned {source!r:.80}, not a Source")
    check = _Check(guard_source(source), f"{source}{which}", patience)
    try:
        await check.source.open()
        try:
            yield check
        finally:
            await check.source.close()
    except SourceError as error:
        raise InvalidSource(f"{check.name}: {error}") from error


class _Check:
    """Checks one instance of the source."""

    def __init__(self, source: Source, name: str, patience: float) -> None:
        self.source, self.name, self.patience = source, name, patience
        self.not_checked: list[str] = []

    def fail(self, what: str, partition: str | None = None) -> NoReturn:
        raise InvalidSource(f"{self.name}{'' if partition is None else f', partition {partition!r}'}: {what}")

    async def once(self, add: Add | None, most_records: int) -> list[_Partition]:
        """Read all partitions, ask each for its `end` and `start`, and wait for new records at their ends."""
        partitions: list[_Partition] = []
        async with AsyncExitStack() as stack:
            for name in await self.names():
                end, start = await self._end(name), await self._start(name, "earliest")
                if start is None:
                    self.fail(f"{self.not_checked[-1]}; a processor begins there, unless it is told otherwise", name)
                one = await stack.enter_async_context(self._reading(name, start))
                partitions.append(_Partition(name, end, one, [_Place(start, 0, "start('earliest')")]))
            self.none_gone([part.name for part in partitions], await self.names())
            left = partitions
            while left:  # in turn: one reader must not move another
                for part in left:
                    part.take(facts := await part.reading.next())
                    part.whole = part.reading.ended or not facts
                left = [part for part in left if not part.whole and len(part.facts) <= most_records]
            if add is None and not any(part.facts for part in partitions):
                raise UsageError(f"{self.name} has no records, which proves nothing: give it some, or give `add`")
            for part in partitions:
                await self._check_answers(part)
                if not part.whole:
                    self.not_checked.append(
                        f"where partition {part.name} ends: it has more than {most_records} records"
                    )
                    part.reading = await stack.enter_async_context(self._reading(part.name, part.end.position))
                    while await part.reading.next():
                        pass
                part.reading.ask()  # so that it waits: for news, and to be cancelled
            await anyio.lowlevel.checkpoint()
            if add is None:
                self.not_checked.append("whether a record that arrives is seen: give `add`")
            else:
                await self._check_appended(partitions, add)
        for part in partitions:
            async with self._reading(part.name, part.places[0].position) as one:
                await one.next()  # and it is closed where it yields
        return partitions

    async def queues(self, source: QueueSource, add: Add | None) -> CheckedSource:
        """Check queues one by one. Their first messages are acknowledged."""
        for _ in range(NEEDED if add is not None else 0):
            await add()  # type: ignore[misc]
        taken = {}
        for name in await self.names():
            await self._start(name, "earliest")
            taken[name] = await check_queue(source, self.name, name, self.patience)
        if not any(taken.values()):
            raise UsageError(f"{self.name} has fewer than {NEEDED} messages in each queue: give it more, or give `add`")
        few = [name for name, count in taken.items() if count < NEEDED]
        return CheckedSource(taken, {}, [f"queue {name}, which has fewer than {NEEDED} messages" for name in few])

    async def again(self, partitions: list[_Partition]) -> None:
        """Read from positions: each must give the rest."""
        for part in partitions:
            read = [place for place in part.places if place.whence == "read()"]
            if (gaps := _MOST_PLACES - 1) < len(read):
                read = [read[number * (len(read) - 1) // gaps] for number in range(_MOST_PLACES)]
            part.places = [*(place for place in part.places if place.whence != "read()"), *read]
            for place in part.places:
                await self._check_rest(part, place)

    async def names(self) -> list[str]:
        listed = await self._answer("partitions()", list_partitions(self.source))
        try:
            TopologicalSorter(listed).prepare()
        except CycleError as error:
            self.fail(f"partitions() names parents in a circle, so none of {error.args[1]!r:.200} would ever run")
        return list(listed)

    def none_gone(self, before: list[str], now: list[str]) -> None:
        if gone := set(before) - set(now):
            self.fail(f"partitions() gave {sorted(gone)!r:.200} before, and does not now: none may vanish meanwhile")

    async def _end(self, name: str) -> End:
        return await self._answer("end()", self.source.end(name), name)

    async def _start(self, name: str, at: Start) -> str | None:
        """None: the source says in words that it knows no such start."""
        try:
            return await self._answer(f"start({str(at)!r})", self.source.start(name, at), name)
        except UsageError as error:
            refused = f"start({str(at)!r}), which is refused: {error}"
            if refused not in self.not_checked:  # for another partition
                self.not_checked.append(refused)
            return None

    async def _answer(self, what: str, answer: Awaitable[T], name: str | None = None) -> T:
        with anyio.move_on_after(self.patience) as cut:
            given = await answer
        if cut.cancelled_caught:
            self.fail(f"{what} gave no answer for {self.patience:g} s (`patience`)", name)
        return given

    def _reading(self, name: str, position: str) -> AbstractAsyncContextManager[Reading]:
        return reading(self.source, self.name, name, position, self.patience)

    async def _check_answers(self, part: _Partition) -> None:
        """Check the answers of `end` and `start`, once the partition was read."""
        ends = [part.end, end := await self._end(part.name)]
        cursors = [Cursor(at, part.facts[known - 1].sequence if known else -1) for at, known, _ in part.places]
        part.end, upto, times = end, len(part.facts), [fact.timestamp for fact in part.facts if fact.timestamp]
        latest = await self._start(part.name, "latest")
        middle = times[len(times) // 2] if times else datetime(2000, 1, 1, tzinfo=UTC)
        by_time = await self._start(part.name, middle)
        if by_time is not None and times:  # it may come earlier; no record from then on may be passed over
            first = next(
                number for number, fact in enumerate(part.facts) if fact.timestamp and fact.timestamp >= middle
            )
            part.places.append(_Place(by_time, first, f"start({str(middle)!r})"))
        if not part.whole:
            return
        if latest is not None:
            part.places.append(_Place(latest, upto, "start('latest')"))
        if end.sequence is not None and end.sequence < part.last:
            self.fail(
                f"end() gave {end}, and read() has given sequence {part.last}: that of the last record", part.name
            )
        if end.sequence is not None and end.sequence > part.last:  # right, if the last records are never given, or gone
            self.not_checked.append(
                f"whether end() of partition {part.name} is right: "
                f"it gave sequence {end.sequence}, the last record has {part.last}"
            )
        if not any(self.source.reached(cursors[-1], end) for end in ends):
            self.fail(
                f"read() said that there is nothing more at {cursors[-1]}, and by reached() that is not yet {end}: "
                "end() must give the position after the last record, or the sequence of the last record",
                part.name,
            )
        reached = False
        for cursor, place in zip(cursors, part.places, strict=False):
            if reached and not self.source.reached(cursor, end):
                self.fail(f"reached() says no at {cursor}, and said yes to {end} before it", part.name)
            reached = self.source.reached(cursor, end)
            if place.before < upto and self._is_there(part.name, cursor, end):
                self.fail(
                    f"{cursor} counts as {end}, with {upto - place.before} records to come: a run until the end would "
                    "stop before them. end(), reached() or sequence_before() is wrong",
                    part.name,
                )
        part.places.append(_Place(end.position, upto, "end()"))

    def _is_there(self, name: str, cursor: Cursor, end: End) -> bool:
        return self.source.reached(cursor, end) and is_certainly_at_end(self.source, name, cursor, end)

    async def _check_appended(self, partitions: list[_Partition], add: Add) -> None:
        old = {part.name: Cursor(part.reading.position, part.reading.last) for part in partitions}
        await add()
        open_ones = [part for part in partitions if not part.reading.ended]
        waiting = {asyncio.create_task(part.reading.next_facts()): part for part in open_ones}
        seen, _ = await asyncio.wait(waiting, timeout=self.patience, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        if not seen:
            self.fail(
                f"a reader at the end did not get the record that was added within {self.patience:g} s "
                "(`patience`): after an empty chunk read() must look for new records again"
            )
        for task in seen:
            part, facts = waiting[task], task.result()
            before, end = part.end, await self._end(part.name)
            if before.sequence is not None and facts[0].sequence <= before.sequence:
                self.fail(
                    f"end() gave {before}, and the record that was added after that has sequence "
                    f"{facts[0].sequence}: it must be the last record's, not the next one's",
                    part.name,
                )
            new = Cursor(part.reading.position, facts[-1].sequence)
            if self._is_there(part.name, old[part.name], end) or not self.source.reached(new, end):
                self.fail(
                    f"end() gave {end}, after a record was added that leads from {old[part.name]} to {new}", part.name
                )
            if part.whole:
                part.take(facts)

    async def _check_rest(self, part: _Partition, place: _Place) -> None:
        """A read from a position must yield all records after it. Records before it are allowed."""
        position, known, whence = place
        came: list[Fact] = []
        async with self._reading(part.name, position) as one:
            while one.last < part.last or known == len(part.facts):
                came += (facts := await one.next())
                if not facts or one.last > part.last:
                    break
        what = f"read() from {position!r}, which {whence} gave,"
        there = {fact.sequence: fact for fact in part.facts}
        came = [fact for fact in came if fact.sequence <= part.last]  # without records that were added meanwhile
        for fact in came:
            if (was := there.get(fact.sequence)) != fact:
                self.fail(
                    f"{what} gave {fact!r:.300}, and {was!r:.300} was there before: it must stay the same", part.name
                )
        older = part.facts[: min(known, len(part.facts) - len(came))]
        expected = part.facts[len(older) :]
        if missing := sorted({fact.sequence for fact in expected} - {fact.sequence for fact in came}):
            self.fail(
                f"{what} did not give sequence {', '.join(map(str, missing[:9]))}: after a position comes the rest, "
                "as often as it is read. (Is the position the next record's, or the last one's? "
                "Do readers share a state?)",
                part.name,
            )
        if "latest" in whence and len(came) > len(part.facts) - known:
            self.fail(f"{what} gave {came[0]!r:.300}, which was there before", part.name)
        before = self.source.sequence_before(part.name, position)
        if before is None:
            return
        least, beyond = older[-1].sequence if older else -1, came[0].sequence if came else before + 1
        if not least <= before < beyond:
            right = f"from {least} to {beyond - 1}" if came else f"{least}, or more"
            self.fail(
                f"sequence_before({position!r}) is {before}: by what read() gave before and after it, {right}",
                part.name,
            )
