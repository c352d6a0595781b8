"""Delivers the commits of one partition to one sink, each once and in order, as long as this host has the partition.

Model: tests/protocol/sink_model.py, whose names of steps and rules are used here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Any, Literal

import anyio
import pyarrow as pa
from msgspec.structs import replace

from actorproc.errors import ActorprocError, UsageError
from actorproc.output.chain import OutputChain
from actorproc.output.follower import ChainFollower
from actorproc.retention.boundary import read_boundary
from actorproc.retention.readers import Registry, SinkEntry
from actorproc.rows.casting import fitted
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.error_text import format_error
from actorproc.runtime.logger import LogThrottle
from actorproc.sinks.commit_rows import CommitRows, RecentCommits, StoredCommits, compacted_put_id
from actorproc.sinks.entries import SinkProgress, hold_back, needed, progress_document
from actorproc.sinks.host_registry import HostRegistry
from actorproc.sinks.lag import LagMeter, RowRate
from actorproc.sinks.lineage import Ancestors, home_of, position_of
from actorproc.sinks.memory import SinkMemory
from actorproc.sinks.options import SinkOptions
from actorproc.sinks.protocol import Delivery, Sink, SinkError, SinkMoved, SinkRefused, SinkRow
from actorproc.sinks.row_shape import RowShape
from actorproc.sinks.terms import is_in_term, row_after
from actorproc.storage.document import SharedDocument
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Conflict, Store

DOCUMENT_EVERY = 5.0
"""Seconds between two writes of the progress: trims and `sinks list` go by it, deliveries do not."""

_LOOK_EVERY = 0.05
"""Seconds between two looks whether all is delivered, at the end of a run."""

_REFUSED_FOR = 5.0
"""Seconds for which a sink may refuse rows at the end of a run, before the run fails."""

_BACKOFF = Backoff(0.2, 30.0)

_PARENTS = Backoff(0.1, 2.0)
"""Between two looks whether the sink has the parents to their ends."""


State = Literal["opening", "running", "paused", "failing", "refusing", "waiting for parents"]
"""- `failing`: the sink is away, or fails otherwise; it is tried again.
- `refusing`: it would refuse the rows again; somebody must mend it.
"""


@dataclass(frozen=True, slots=True)
class SinkStatistics:
    """Progress of the delivery of one partition to one sink."""

    name: str
    state: State = "opening"
    position: int | None = None
    """Number of the next commit to deliver; None: not known yet."""
    lag: int | None = None
    """Commits that the sink does not have yet; None: not known."""
    lag_rows: int | None = None
    """Output rows of these commits; None: not known."""
    lag_seconds: float | None = None
    """Age of the oldest of these commits; 0 without lag; None: not known."""
    rows: int = 0
    """Delivered since the partition was opened here."""
    rate: float = 0.0
    """Rows a second in the last half minute."""
    waits_for: tuple[str, ...] = ()
    """Partitions before this one, which an ordered sink must have to their ends first."""
    error: str | None = None
    """Why it fails."""
    error_since: float | None = None
    """In seconds since 1970."""


class _Anew(Exception):
    """The entry or the sink's row is not what was read: open the delivery anew."""


class SinkDelivery:
    """The delivery of one partition to one sink.

    Args:
        opened: the sink, which the partitions of the host share, once it is open.
        shape: what the sink gets of the rows.
        schema: of all rows, with `_sequence`.
        tell: called with `delivered` or `sink_failed`, and fields of `handler.hooks.Event`. Never waits.
    """

    def __init__(
        self,
        name: str,
        opened: Callable[[], Awaitable[Sink]],
        reopen: Callable[[], None],
        options: SinkOptions,
        shape: RowShape,
        partition: str,
        *,
        store: Store,
        layout: ProcessorLayout,
        registry: HostRegistry,
        memory: SinkMemory,
        schema: pa.Schema,
        log: Any,
        tell: Callable[..., None] = lambda kind, **fields: None,
    ) -> None:
        self.name = name
        self._statistics = SinkStatistics(name)
        self._opened, self._reopen = opened, reopen
        self._partition = partition
        self._store, self._layout, self._clock = store, layout, store.clock
        self._schema, self._shape = schema, shape
        self._replaces, self._every = options.on_reset == "replace", options.columns is None
        self._logger = log.bind(sink=name)
        self._tell = tell
        self._most_rows = options.batch_rows
        self._recent, self._slots = RecentCommits(memory.recent), memory.files
        self._tip = 0  # number of the next commit that this owner makes
        self._depth = 0
        self._meter, self._rate = LagMeter(), RowRate()
        self._news = anyio.Event()
        self._progress: SharedDocument[SinkProgress] = progress_document(store, layout, name, partition)
        self._registry = registry
        self._owner = ""
        self._sink: Sink | None = None
        self._home = home_of(store, layout)
        self._ancestors = Ancestors(store, layout, name, partition, self._home)
        self._entry: SinkEntry | None = None
        self._row: SinkRow | None = None
        self._position = 0
        self._written_at = self._published_at = -DOCUMENT_EVERY
        self._failures = 0
        self._throttle = LogThrottle()

    # For the partition

    def begin(self, tip: int, depth: int, rows: int) -> None:
        """The partition was opened, and its chain ends before commit `tip`, with so many rows before it.

        `depth`: see `Checkpoint.depth`.
        """
        self._tip, self._depth = tip, depth
        self._meter.begin(tip, rows)

    def committed(self, number: int, rows: pa.Table, put_id: str, begin: int) -> None:
        """Commit `number` is settled, and begins after sequence `begin`. Never waits."""
        self._recent.add(number, rows, put_id, begin)
        self._tip = number + 1
        self._meter.committed(number, rows.num_rows, self._clock.wall())
        self._news.set()

    def statistics(self) -> SinkStatistics:
        """A snapshot."""
        lag = self._meter.lag(self._statistics.position, self._clock.wall())
        rate = self._rate.per_second(self._clock.monotonic())
        return replace_fields(
            self._statistics, lag=lag.commits, lag_rows=lag.rows, lag_seconds=lag.seconds, rate=round(rate, 1)
        )

    def _note(self, **fields: Any) -> None:
        self._statistics = replace_fields(self._statistics, **fields)

    async def caught_up(self, stopped: Callable[[], bool]) -> None:
        """Wait until the sink has everything that is committed, or is paused, or `stopped` says so.

        Raises:
            SinkRefused: it refuses rows.
        """
        while not stopped():
            now = self.statistics()
            if now.state == "refusing" and self._clock.wall() - (now.error_since or 0.0) > _REFUSED_FOR:
                raise SinkRefused(f"sink {self.name} refuses rows: {now.error}")
            if now.state == "paused" or (now.state == "running" and now.lag == 0):
                return
            await self._clock.sleep(_LOOK_EVERY)

    async def run(self) -> None:
        """Deliver until cancelled. Errors of the sink and the store are logged, and tried again after a back-off."""
        try:
            await self._run()
        finally:
            self._recent.clear()

    async def _run(self) -> None:
        while True:
            try:
                if self._statistics.error is not None:  # the store is not asked while the sink is away
                    await (await self._opened()).read(self._partition)
                await self._open()
                await self._deliver()
            except (_Anew, SinkMoved):
                self._failures += 1  # somebody else delivers: a pause, so that two owners do not race for ever
                await self._clock.sleep(_BACKOFF.delay(min(self._failures, 3), self._clock.random))
            except Exception as error:  # noqa: BLE001  # whatever the sink's client raises
                await self._failed(error)

    async def close(self) -> None:
        """Note how far the sink is, as far as the store answers: trims and `sinks list` go by it."""
        if self._entry is not None and self._statistics.state == "running":
            with suppress(ActorprocError, Conflict, _Anew):
                await self._write_progress(self._entry)

    # Opening

    async def _open(self) -> None:
        """Find out where to go on: the entry, then the sink's row, then the entry again."""
        entry = await self._read_entry()
        self._owner = self._clock.nonce()
        found = await self._progress.read() or SinkProgress()
        await self._swap(replace(found, owner=self._owner))  # claim
        if self._statistics.position is None:  # until the sink tells, which may be away
            await self._at(needed(entry, self._partition, found))
        sink = self._sink = await self._opened()

        async def noted() -> SinkProgress:
            return found

        row, position = await position_of(sink, entry, self._partition, self._home, noted)
        part = entry.part(self._partition)
        await self._check_same_chain(entry, row)
        if position < (lowest := await self._lowest()):
            raise SinkRefused(
                f"sink {self.name} needs commit {position} of partition {self._partition} next, and commits below "
                f"{lowest} were trimmed: its database was restored from an older backup, or emptied. Restore a newer "
                f"one; or register the sink anew (`actorproc sinks delete {self.name}`), and it begins at {lowest}"
            )
        if await self._read_entry() != entry:
            raise _Anew
        if position < needed(entry, self._partition, self._progress.current):  # it went back: a trim must know first
            changed = await hold_back(self._store, self._layout, self.name, entry, self._partition, position)
            if changed is None:
                raise _Anew
            entry, part = changed, changed.part(self._partition)
        confirmed = replace(
            found, owner=self._owner, term=entry.term, gen=part.gen, position=position,
            fenced=found.fenced and entry.paused,  # the next pause raises the fence again
        )  # fmt: skip
        await self._swap(confirmed)
        self._entry, self._row, self._position = entry, row, position
        await self._at(position)

    async def _at(self, position: int) -> None:
        """Note where the sink is, and look in the chain how far that is behind, if commits of this owner do not say."""
        self._note(position=position)
        if not self._meter.knows(position):
            with suppress(ActorprocError):  # such as commits that were trimmed
                follower = ChainFollower(self._store, self._layout, self._partition)
                self._meter.place(position, *await follower.place(position))

    async def _check_same_chain(self, entry: SinkEntry, row: SinkRow | None) -> None:
        """Stop if the commit before the position is another one: the container was restored, and has gone on."""
        if row is None or not row.put_id or (row.home, row.life) != (self._home, entry.life):
            return
        boundary = await read_boundary(self._store, self._layout.boundary(self._partition))
        before = row.position - 1
        if before < boundary.originals:
            found = await compacted_put_id(self._store, self._layout, self._partition, boundary, before)
        else:
            commit = await OutputChain(self._store, self._layout, self._partition).read(before)
            found = commit.put_id if commit is not None else ""
        if found is not None and found != row.put_id:
            raise SinkRefused(
                f"sink {self.name} has commit {before} of partition {self._partition}, and the container has another "
                "one, or none: it was restored from a backup. Remove the rows in the sink that it does not have, then "
                f"`actorproc sinks delete {self.name}`, and start again"
            )

    async def _read_entry(self) -> SinkEntry:
        return self._entry_of(await self._registry.read())

    async def _entry_is(self, entry: SinkEntry) -> bool:
        """Whether the entry was still this one a short time ago."""
        return self._entry_of(await self._registry.recent(DOCUMENT_EVERY)) == entry

    def _entry_of(self, registry: Registry | None) -> SinkEntry:
        entry = registry.sinks.get(self.name) if registry else None
        if entry is None:
            raise SinkRefused(f"sink {self.name} is not registered any more: it was deleted while this host runs")
        return entry

    async def _lowest(self) -> int:
        registry = self._registry.current
        decided = registry.lowest.get(self._partition, 0) if registry else 0
        boundary = await read_boundary(self._store, self._layout.boundary(self._partition))
        return max(decided, boundary.lowest)

    # Delivering

    async def _deliver(self) -> None:
        entry = self._entry
        if entry is None:
            raise RuntimeError("not opened")
        if entry.paused:
            await self._pause(entry)
            return
        await self._await_parents(entry)
        follower = ChainFollower(self._store, self._layout, self._partition)
        stored = StoredCommits(follower, self._schema, self._clock, self._slots, every=self._every)
        if self._statistics.error is None:
            self._note(state="running")
        with closing(stored):
            await self._deliver_from(stored, entry)

    async def _deliver_from(self, stored: StoredCommits, entry: SinkEntry) -> None:
        while True:
            self._news = anyio.Event()
            found = await self._next(stored)
            if found is None:
                self._succeeded()
                await self._idle(entry)
                continue
            await self._send(entry, found)
            if self._clock.monotonic() >= self._written_at + DOCUMENT_EVERY:
                await self._write_progress(entry)

    async def _await_parents(self, entry: SinkEntry) -> None:
        """Rules `wait` and `all`: an ordered sink gets nothing before it has the parents to their ends.

        They stay there unless the entry changes, and then the delivery is opened anew.
        """
        sink, attempt = self._sink, 0
        if sink is None or not sink.ordered:
            return
        while waits_for := await self._ancestors.waited_for(sink, entry):
            self._succeeded("waiting for parents")
            self._note(waits_for=tuple(waits_for))
            attempt += 1
            await self._clock.sleep(_PARENTS.delay(attempt, self._clock.random))
            if await self._read_entry() != entry:
                raise _Anew
        self._note(waits_for=())

    async def _next(self, stored: StoredCommits) -> CommitRows | None:
        if self._position >= self._tip:
            return None
        recent = self._recent.since(self._position, self._most_rows)
        if recent is None:
            return await self._stored(stored)
        # Void, if this owner slept before it made the commit: then the boundary has passed it.
        boundary = await read_boundary(self._store, self._layout.boundary(self._partition))
        if self._position < boundary.originals:
            return await self._stored(stored)
        return replace_fields(recent, rows=fitted(recent.rows, self._schema))

    async def _stored(self, stored: StoredCommits) -> CommitRows | None:
        found = await stored.since(self._position, self._most_rows)
        if found is not None and found.place is not None:
            self._meter.place(found.first, *found.place)
        return found

    async def _send(self, entry: SinkEntry, found: CommitRows) -> None:
        was = self._row
        now = row_after(entry, self._partition, was, self._home, found.next, found.put_id)
        begins = not is_in_term(entry, self._partition, was, self._home)
        rows, counts = await self._shaped(found)
        await self._write(
            Delivery(
                self._partition, rows, self._position, counts, was, now, put_ids=found.put_ids, begins=begins,
                replace_after=self._replaced(found, begins), depth=self._depth, registration=entry.term,
            )
        )  # fmt: skip
        self._row, self._position = now, found.next
        self._note(position=found.next, rows=self._statistics.rows + rows.num_rows)
        self._rate.add(rows.num_rows, self._clock.monotonic())
        self._meter.delivered(found.next)
        self._tell("delivered", sink=self.name, rows=rows.num_rows, commits=len(found.counts), upto=found.next - 1)
        self._recent.forget(found.next)
        self._succeeded()

    async def _shaped(self, found: CommitRows) -> tuple[pa.Table, list[int]]:
        if self._shape.is_heavy:
            return await self._clock.run_in_thread(self._shape.apply, found.rows, found.counts)
        return self._shape.apply(found.rows, found.counts)

    def _replaced(self, found: CommitRows, begins: bool) -> int | None:
        """The sequence after which rows of the partition are deleted first."""
        if not self._replaces:
            return None
        if found.begin is None:
            raise SinkRefused(
                f"commit {found.first} of partition {self._partition} is in a file that an earlier version of "
                "actorproc has compacted, which does not say where resets are: on_reset = replace cannot pass it"
            )
        after = [found.begin if begins else None, found.reset_to]
        return min((each for each in after if each is not None), default=None)

    async def _write(self, delivery: Delivery) -> None:
        if self._sink is None:
            raise RuntimeError("not opened")
        await self._sink.write(delivery)

    async def _idle(self, entry: SinkEntry) -> None:
        """Wait for the next commit. The progress is written, and the entry is looked at now and then."""
        while not self._news.is_set():
            with anyio.move_on_after(DOCUMENT_EVERY):
                await self._news.wait()
                return
            await self._write_progress(entry)

    async def _write_progress(self, entry: SinkEntry) -> None:
        """Note what is delivered. Looks at the entry, which operators change."""
        self._written_at = self._clock.monotonic()
        wanted = replace(
            self._progress.current or SinkProgress(), owner=self._owner, term=entry.term,
            gen=entry.part(self._partition).gen, position=self._position, fenced=False, error=None,
            error_since=None, refuses=False,
        )  # fmt: skip
        if wanted != self._progress.current:
            await self._swap(wanted)
        if not await self._entry_is(entry):
            raise _Anew

    async def _pause(self, entry: SinkEntry) -> None:
        """Raise the fence, so that nothing that is under way lands; then wait until the sink is resumed."""
        found = self._progress.current or SinkProgress()
        if not found.fenced:
            was = self._row or SinkRow("", 0, "", 0, 0)
            now = replace(was, fence=was.fence + 1)  # nothing else: a delivery of this term has still to begin
            await self._write(
                Delivery(self._partition, self._shape.schema.empty_table(), self._position, (), self._row, now)
            )
            self._row = now
            await self._swap(replace(found, fenced=True))
        self._succeeded("paused")
        while await self._entry_is(entry):
            await self._clock.sleep(DOCUMENT_EVERY)

    async def _swap(self, progress: SinkProgress) -> None:
        """Write the progress, unless another owner has claimed it."""
        try:
            await self._progress.swap(progress)
        except Conflict:
            raise _Anew from None

    # Failing

    def _succeeded(self, state: State = "running") -> None:
        if self._statistics.error is not None:
            self._logger.info("sink.delivers_again")
        self._note(state=state, error=None, error_since=None)
        self._failures = 0

    async def _failed(self, error: Exception) -> None:
        self._failures = 1 if isinstance(error, SinkError) and error.made_progress else self._failures + 1
        text, refuses = format_error(error), isinstance(error, SinkRefused | UsageError)
        self._reopen()  # somebody may have dropped the target, and it needs its tables then
        if text != self._statistics.error:
            self._tell("sink_failed", sink=self.name, error=error, reason=text)
        self._note(
            state="refusing" if refuses else "failing", error=text,
            error_since=self._statistics.error_since or self._clock.wall(),
        )  # fmt: skip
        delay = _BACKOFF.delay(self._failures, self._clock.random)
        if refuses:
            delay = max(delay, _BACKOFF.most)
        if isinstance(error, SinkError):
            delay = max(delay, error.again_in)
        say = self._logger.warning if self._throttle.due("", self._clock.monotonic()) else self._logger.debug
        say("sink.failed", error=text, again_in=round(delay, 1))
        await self._publish(text, refuses=refuses)
        await self._clock.sleep(delay)

    async def _publish(self, error: str, *, refuses: bool) -> None:
        """Note the error in the progress, where operators see it, as far as the store answers."""
        found, registry, now = self._progress.current, self._registry.current, self._clock.monotonic()
        entry = registry.sinks.get(self.name) if registry else None
        if found is None or entry is None or found.owner != self._owner or found.error_of(entry) == error:
            return
        if now >= self._published_at + DOCUMENT_EVERY:
            self._published_at = now
            noted = replace(
                found, error=error, error_since=self._statistics.error_since, error_term=entry.term, refuses=refuses
            )
            with suppress(ActorprocError, Conflict):
                await self._progress.swap(noted)
