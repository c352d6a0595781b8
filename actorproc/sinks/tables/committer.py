"""Makes the transactions of one table. One host of the group does, where possible; two at once are harmless.

Safety comes from the condition of each transaction alone. Model: tests/protocol/table_model.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Any, Literal, NamedTuple

import anyio
import pyarrow as pa
from msgspec.structs import replace

from actorproc.errors import ActorprocError, UsageError
from actorproc.retention.boundary import NOTHING_TRIMMED, Boundary
from actorproc.retention.readers import SinkEntry, read_registry
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.error_text import format_error
from actorproc.runtime.logger import LogThrottle
from actorproc.runtime.tasks import gather
from actorproc.sinks.protocol import SinkMoved, SinkRefused
from actorproc.sinks.tables.chain_reader import ChainReader
from actorproc.sinks.tables.cutting import cut
from actorproc.sinks.tables.ownership import Choice
from actorproc.sinks.tables.plan import PartitionPlan, PartitionView, Stale, plan
from actorproc.sinks.tables.progress import TableProgress, table_progress
from actorproc.sinks.tables.protocol import (
    AddedFile,
    RemovedFile,
    TableChange,
    TableHome,
    TableSink,
    TableSnapshot,
)
from actorproc.storage.store import Conflict

_BACKOFF = Backoff(1.0, 60.0)
_TRIES = 5  # in a row that others may win, before a committer waits for its next turn

_Plans = dict[str, PartitionPlan]
"""By partition."""

_ANYWAY = 10
"""Intervals after which another host makes a transaction, too: the first one may not have the table configured."""

_LOOK_EVERY = 1.0
"""Seconds between two looks whether it is this host's turn."""


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Progress of a table, as this host knows it."""

    name: str
    state: Literal["waiting", "running", "paused", "failing", "refusing"] = "waiting"
    """- `waiting`: another host makes its transactions.
    - `failing`: the table is away, or fails otherwise; it is tried again.
    - `refusing`: it would refuse again; somebody must mend it.
    """
    lag: int | None = None
    """Commits that it did not have at the latest look, at most one `interval` ago; None: not known."""
    lag_rows: int | None = None
    """Output rows of these commits."""
    lag_seconds: float | None = None
    """Age of the oldest of them, or at most that; 0 without lag; None: not known."""
    transactions: int = 0
    """Made by this host."""
    files: int = 0
    """Added by this host."""
    rows: int = 0
    """In these files."""
    error: str | None = None
    error_since: float | None = None
    """In seconds since 1970."""


class _Lacked(NamedTuple):
    """What a table lacks of one partition."""

    commits: int
    rows: int
    since: float
    """Time of the oldest, in seconds since 1970."""


def _lacked(view: PartitionView) -> _Lacked:
    at = view.start if view.place is None else view.place.position
    singles = [commit.file for number, commit in view.commits.items() if number >= at]
    ranges = [found for number, found in view.ranges.items() if number >= at]
    return _Lacked(
        len(singles) + sum(len(found.rows) for found in ranges),
        sum(file.rows for file in singles) + sum(int(sum(found.rows)) for found in ranges),
        min((file.time for file in [*singles, *(found.file for found in ranges)]), default=0.0),
    )


def _refused(name: str, stale: Mapping[str, Stale]) -> SinkRefused:
    partition, found = min(stale.items())
    return SinkRefused(
        f"table {name} cannot go on in partition {partition}: {found.reason}. Bring the file back from a backup. "
        "`actorproc verify` says what else is missing"
    )


class TableCommitter:
    """Collects the commits of all partitions, each `interval`, and makes one transaction of them.

    Args:
        schema: of the rows, with `_sequence`; None: an operator's command, which creates and changes no columns.
        host: its name, for operators.
        log: bound to processor and host.
        tell: called with `delivered` or `sink_failed`, and fields of `handler.hooks.Event`. Never waits.
        follow: see `ChainNews`.
        others: what becomes of files of which nobody can tell whose rows they have, if the table is made anew.
    """

    def __init__(
        self,
        name: str,
        sink: TableSink,
        home: TableHome,
        *,
        schema: pa.Schema | None,
        host: str,
        log: Any,
        tell: Callable[..., None] = lambda kind, **fields: None,
        follow: Callable[[str], None] = lambda address: None,
        others: Choice = "refuse",
    ) -> None:
        self.name, self.sink = name, sink
        self._home, self._schema, self._host, self._others = home, schema, host, others
        self._clock = home.store.clock
        self._logger = log.bind(sink=name)
        self._tell = tell
        self._chain = ChainReader(home.store, home.layout, sink.describe, follow)
        self._progress = table_progress(home.store, home.layout, name)
        self._is_open = False
        self._checked: set[str] = set()  # partitions whose last commit is the chain's
        self._turns = anyio.Lock()  # a host that ends may be in the middle of one
        self._term = ""  # of the registration, as it was last read
        self._failures = 0
        self._throttle = LogThrottle()
        self._statistics = TableStatistics(name)
        self._had_all_at: float | None = None  # wall time of the latest look at which it lacked nothing
        self._lacks_since: float | None = None  # time of the oldest commit that it lacks, or an earlier time

    def statistics(self) -> TableStatistics:
        """A snapshot."""
        found = self._statistics
        if found.state == "waiting":
            return replace_fields(found, lag=None, lag_rows=None)
        since = self._lacks_since
        seconds = 0.0 if found.lag == 0 else None
        return replace_fields(found, lag_seconds=seconds if since is None else max(0.0, self._clock.wall() - since))

    def _note(self, **fields: Any) -> None:
        self._statistics = replace_fields(self._statistics, **fields)

    async def open(self) -> None:
        """Open the table, unless it is open. Raises whatever `TableSink.open` raises."""
        if not self._is_open:
            await self.sink.open(self._schema, self._home)
            self._is_open = True

    # At a host

    def told(self, partition: str) -> None:
        """See `ChainNews.told`."""
        self._chain.news.told(partition)

    async def run(self, is_first: Callable[[], bool]) -> None:
        """Make transactions until cancelled, when it is this host's turn. Errors are logged, and tried again.

        Args:
            is_first: whether this host is the one that makes them. Two that think so cost requests, nothing else.
        """
        interval = self.sink.options.interval
        began = self._clock.monotonic() - interval * self._clock.random.random()
        while True:
            await self._clock.sleep(min(_LOOK_EVERY, interval))
            first = is_first()
            if not first and self._statistics.state != "waiting":
                self._note(state="waiting", error=None, error_since=None)
            pause = _BACKOFF.delay(self._failures, self._clock.random) if self._failures else 0.0
            if self._clock.monotonic() >= began + max(interval if first else _ANYWAY * interval, pause):
                began = self._clock.monotonic()
                await self.turn()

    async def turn(self, *, ask_all: bool = False) -> bool:
        """Bring the table up to date. False: it has failed, which is logged.

        Args:
            ask_all: do not rely on what tells of new commits.
        """
        if ask_all:
            self._chain.news.forget()
        try:
            async with self._turns:
                await self.commit()
        except Exception as error:  # noqa: BLE001  # whatever the table's client raises
            await self._failed(error)
            return False
        return True

    # Transactions

    async def commit(self) -> TableSnapshot:
        """Make transactions until there is nothing left to do, and return the table then.

        Raises:
            SinkRefused: the table does not fit the chain, or cannot be changed.
            SinkMoved: others were first, again and again.
            ActorprocError: the store or the table does not answer.
        """
        await self.open()
        tries, known = 0, dict[str, Stale]()
        while True:
            table = await self.sink.load()
            entry = await self._entry()  # rule `after`
            self._term = entry.term
            if entry.paused:
                return await self._pause(entry, table)
            boundaries, due = await self._chain.views(table, entry, self._others)
            await self.check_fits(table, entry, boundaries)
            plans, stale = self._plans(due, replaces=entry.replaces)
            self._note_lag(due)
            if stale != known:  # files were replaced since the table was loaded, or are lost: a fresh look tells
                tries, known = tries + 1, stale
                if tries < _TRIES:
                    continue
            anew = table.life != entry.life
            if stale and anew:  # it is made anew as a whole, or not at all
                raise _refused(self.name, stale)
            if plans or anew:
                try:
                    await self._land(entry, table, plans, due)
                except SinkMoved:
                    tries += 1
                    if tries >= _TRIES:
                        raise
                    await self._clock.sleep(_BACKOFF.delay(1, self._clock.random))
                    continue
                if not all(self._chain.is_taken(v, plans[v.partition].place) for v in due if v.partition in plans):
                    continue
                table = await self.sink.load()
            if stale:
                raise _refused(self.name, stale)
            return await self._succeeded(entry, table)

    async def check_anew(self) -> None:
        """Check that the table can be made anew.

        Raises:
            SinkRefused: files of the output are missing, or nobody can tell whose rows the table has.
        """
        known = dict[str, Stale]()
        for _ in range(_TRIES):
            table = await self.sink.load()
            entry = await self._entry()
            _, due = await self._chain.views(table, replace(entry, life=entry.life + 1), self._others)
            _, stale = self._plans(due, replaces=entry.replaces)
            if stale == known:
                break
            known = stale
        if known:
            raise _refused(self.name, known)

    def _plans(self, views: Sequence[PartitionView], *, replaces: bool) -> tuple[_Plans, dict[str, Stale]]:
        found = {view.partition: plan(self._home.layout, view, replaces=replaces) for view in views}
        return (
            {partition: planned for partition, planned in found.items() if isinstance(planned, PartitionPlan)},
            {partition: planned for partition, planned in found.items() if isinstance(planned, Stale)},
        )

    async def _land(self, entry: SinkEntry, table: TableSnapshot, plans: _Plans, due: Sequence[PartitionView]) -> None:
        adds: list[AddedFile] = []
        removes: list[RemovedFile] = []
        for partition, planned in plans.items():
            adds += planned.adds
            removes += planned.removes
            if planned.taken_back is not None:
                gone = {file.key for file in planned.removes}
                copies, cuts = await cut(self._home, self.sink, table, partition, planned.taken_back, gone)
                adds += copies
                removes += cuts
        places = {partition: planned.place for partition, planned in plans.items()}
        await self.sink.commit(table, TableChange(entry.life, places, adds, removes))
        self._checked |= plans.keys()
        commits = sum(_lacked(view).commits for view in due if view.partition in plans)
        done = self._statistics
        rows = sum(file.rows for file in adds if file.new_rows)
        self._note(transactions=done.transactions + 1, files=done.files + len(adds), rows=done.rows + rows)
        self._logger.debug("table.committed", added=len(adds), removed=len(removes), rows=rows)
        if commits:
            self._tell("delivered", sink=self.name, rows=rows, commits=commits)

    def _note_lag(self, due: Sequence[PartitionView]) -> None:
        found = [lacked for view in due if (lacked := _lacked(view)).commits]
        self._note(lag=sum(one.commits for one in found), lag_rows=sum(one.rows for one in found))
        self._lacks_since = min((one.since for one in found), default=None)

    async def check_fits(
        self, table: TableSnapshot, entry: SinkEntry, boundaries: Mapping[str, Boundary] | None = None
    ) -> None:
        """Check that the table belongs to this chain, and has what its positions say (rule `fits`).

        Args:
            boundaries: as they were read after the table was loaded.

        Raises:
            SinkRefused: the container was restored from a backup, and has gone on in another way; or the table was set
                back to an earlier version.
        """
        if table.life != entry.life:
            return
        if table.set_back:
            raise SinkRefused(
                f"table {self.name} was set back to an earlier version, so rows are missing in it. `actorproc sinks "
                f"repair {self.name}` makes the table what the output has"
            )
        found = await self._chain.boundaries() if boundaries is None else boundaries
        for partition, place in table.places.items():
            if place.seen > found.get(partition, NOTHING_TRIMMED).changes:
                raise self._does_not_fit(partition, "has seen a later boundary of its files")
        unknown = [p for p, place in table.places.items() if place.mark and p not in self._checked]

        async def check(partition: str) -> None:
            place = table.places[partition]
            mark = await self._chain.put_mark(partition, place.position - 1, found.get(partition, NOTHING_TRIMMED))
            if mark is None or mark not in (0, place.mark):
                raise self._does_not_fit(partition, f"has another commit {place.position - 1}")
            self._checked.add(partition)

        await gather(unknown, check)

    def _does_not_fit(self, partition: str, why: str) -> SinkRefused:
        return SinkRefused(
            f"table {self.name} {why} in partition {partition} than the container: the container was restored from a "
            f"backup. `actorproc sinks repair {self.name}` makes the table what the container has"
        )

    async def _entry(self) -> SinkEntry:
        registry = await read_registry(self._home.store, self._home.layout.readers)
        if (entry := registry.sinks.get(self.name)) is None:
            raise SinkRefused(f"sink {self.name} is not registered any more: it was deleted while this host runs")
        return entry

    async def _pause(self, entry: SinkEntry, table: TableSnapshot) -> TableSnapshot:
        """One transaction that changes nothing: one that another host had under way cannot land any more.

        What an earlier pause has made does not count: transactions may be under way that began in between (rule
        `each`).
        """
        found = await self._progress.read() or TableProgress()
        if not found.is_fenced(entry):
            with suppress(SinkMoved):  # then the next turn tries again
                await self.sink.commit(table, TableChange(table.life))
                await self._publish(
                    replace(found, term=entry.term, fenced=True, pause=entry.pause, error=None, refuses=False)
                )
        self._recovered("paused")
        return table

    # For operators

    def _recovered(self, state: Literal["running", "paused"]) -> None:
        if self._statistics.error is not None:
            self._logger.info("sink.delivers_again")
        self._failures = 0
        self._note(state=state, error=None, error_since=None)

    async def _succeeded(self, entry: SinkEntry, table: TableSnapshot) -> TableSnapshot:
        found = await self._progress.read() or TableProgress()
        if found.count > table.count:  # another committer has been there since it was loaded
            table = await self.sink.load()
        self._recovered("running")
        self._note(lag=0, lag_rows=0)
        self._lacks_since, self._had_all_at = None, self._clock.wall()
        positions = {partition: place.position for partition, place in table.places.items()}
        wanted = replace(
            found, term=entry.term, count=table.count, table_version=table.version, positions=positions, fenced=False,
            error=None, refuses=False,
        )  # fmt: skip
        if wanted != found:
            await self._publish(replace(wanted, host=self._host, time=self._home.store.time.now()))
        return table

    async def _failed(self, error: Exception) -> None:
        self._failures += 1
        text, refuses = format_error(error), isinstance(error, SinkRefused | UsageError)
        if text != self._statistics.error:
            self._tell("sink_failed", sink=self.name, error=error, reason=text)
        if self._lacks_since is None:  # the chain, or the table, could not be read
            self._lacks_since = self._had_all_at
            self._note(lag=None, lag_rows=None)
        self._note(
            state="refusing" if refuses else "failing",
            error=text,
            error_since=self._statistics.error_since or self._clock.wall(),
        )
        say = self._logger.warning if self._throttle.due("", self._clock.monotonic()) else self._logger.debug
        say("sink.failed", error=text, again_in=self.sink.options.interval)
        with suppress(ActorprocError):
            found = await self._progress.read() or TableProgress()
            if self._term not in ("", found.term):  # what is noted is of an earlier registration
                found = TableProgress(term=self._term)
            if (found.error, found.refuses) != (text, refuses):
                await self._publish(replace(found, host=self._host, error=text, refuses=refuses))

    async def _publish(self, progress: TableProgress) -> None:
        """Write the progress, unless another committer does."""
        with suppress(Conflict):
            await self._progress.swap(progress)
