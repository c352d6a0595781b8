"""Invariants of the delivery to sinks: at each transaction that lands, at each trim, and at the end.

The rules that they check: tests/protocol/sink_model.py.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from actorproc.output.chain import Commit
from actorproc.retention.readers import Registry, SinkEntry
from actorproc.simulation.database import NAME, Contents, Key, Row, SimulatedDatabase
from actorproc.sinks.entries import SinkProgress
from actorproc.sinks.protocol import Delivery
from actorproc.storage.parquet import Footer, parse_footer


@dataclass(frozen=True, slots=True)
class CommittedRows:
    """One commit of the chain."""

    put_id: str
    rows: list[Row]
    reset_to: int | None
    """Sequence up to which rows stay: the commit is a reset."""


class SinkChecks:
    """What a sink must hold, by the chain and the registry.

    Args:
        broken: called with each invariant that does not hold.
        options: of the sink.
    """

    def __init__(self, broken: Callable[[str], None], options: Mapping[str, Any], *, seed: object = 0) -> None:
        self.seen: Counter[str] = Counter()
        self.database = SimulatedDatabase(self._landed, options, seed=seed)
        self._depths: dict[str, int] = {}
        self.entry: SinkEntry | None = None
        """As it is registered; None: deleted, or not yet."""
        self.lowest: dict[str, int] = {}
        """By partition: what a trim has decided."""
        self._entries: dict[int, SinkEntry] = {}  # the latest of each life
        self._commits: dict[str, dict[int, CommittedRows]] = {}
        self._fenced: dict[str, str] = {}  # partition -> term of the entry whose pause is done
        self._report = broken

    # Told by the store

    def output_written(self, partition: str, number: int, body: bytes) -> None:
        """A file of the chain was written. A later one of the same number is void."""
        commits = self._commits.setdefault(partition, {})
        if number in commits:
            return
        footer = parse_footer(f"{number}", body, tag="", size=len(body))
        if not isinstance(footer, Footer):
            raise TypeError("the whole body was given")
        rows = pq.read_table(io.BytesIO(body), use_threads=False).to_pylist()
        commit = Commit.from_footer(f"{number}", footer)
        goes_back = commit.reset is not None and commit.reset.back
        commits[number] = CommittedRows(commit.put_id, rows, commit.next.sequence if goes_back else None)

    def registry_written(self, registry: Registry) -> None:
        """The entry of the sink has changed, or a trim has decided."""
        entry = self.entry = registry.sinks.get(NAME)
        if entry is not None:
            self._entries[entry.life] = entry
            if not entry.paused:
                self._fenced.clear()
        for partition, lowest in registry.lowest.items():
            if lowest > self.lowest.get(partition, 0):
                self.lowest[partition] = lowest
                self.seen["sink_trims"] += 1
                if entry is not None and lowest > (needed := self._next(entry, partition, self.database.contents)):
                    self._broken(partition, f"a trim below {lowest} was decided, and the sink needs {needed}")

    def progress_written(self, partition: str, progress: SinkProgress) -> None:
        """An owner has noted its progress."""
        entry = self.entry
        if entry is None or progress.term != entry.term:
            return
        if progress.fenced and entry.paused:
            self._fenced[partition] = entry.term
            self.seen["sink_fenced"] += 1
        if not progress.counts(entry, entry.part(partition)):
            return
        states = [self.database.contents, *self.database.former]
        if progress.position > (most := max(self._next(entry, partition, state) for state in states)):
            self._broken(partition, f"the progress is at {progress.position}, and the sink needs {most}")

    # Told by the database

    def _landed(self, delivery: Delivery, before: Contents) -> None:
        partition, now = delivery.partition, delivery.now
        self.seen["sink_transactions"] += 1
        self.seen["sink_rows"] += delivery.rows.num_rows
        self._depths[partition] = delivery.depth
        if delivery.counts and partition in self._fenced:
            self._broken(partition, f"{delivery.since} to {now.position} land in the sink while it is paused")
        if not delivery.counts:
            return
        entry = self._entries.get(now.life)
        if entry is None:
            self._broken(partition, f"a delivery of life {now.life}, which was never registered")
            return
        due = self._next(entry, partition, {partition: before}, upto=now.term)
        if delivery.since != due:
            self._broken(partition, f"a delivery of term {now.term} begins at {delivery.since}, due is {due}")
        self._check_rows(delivery)
        for number in range(delivery.since, now.position):
            if any((block.life, block.term) == (now.life, now.term) for block in before.blocks.get(number, ())):
                self._broken(partition, f"commit {number} is in the sink twice in one term")

    def _check_rows(self, delivery: Delivery) -> None:
        partition, now = delivery.partition, delivery.now
        commits = self._commits.get(partition, {})
        if now.position != delivery.since + len(delivery.counts):
            self._broken(partition, f"{len(delivery.counts)} commits from {delivery.since} on end at {now.position}")
        rows, first = delivery.rows.to_pylist(), 0
        for number, count in enumerate(delivery.counts, delivery.since):
            delivered = rows[first : first + count]
            first += count
            if (committed := commits.get(number)) is None:
                self._broken(partition, f"commit {number} is delivered before it is in the chain")
            elif committed.rows != delivered:
                self._broken(partition, f"commit {number} is in the sink with rows that are not its own")
        self._check_same_chain(delivery, commits)
        last = commits.get(now.position - 1)
        if now.put_id and last is not None and last.put_id != now.put_id:
            self._broken(partition, f"the put-id of commit {now.position - 1} in the sink is not the commit's")

    def _check_same_chain(self, delivery: Delivery, commits: Mapping[int, CommittedRows]) -> None:
        was = delivery.was
        if was is None or was.life != delivery.now.life or not was.put_id:
            return
        before = commits.get(was.position - 1)
        if before is not None and before.put_id != was.put_id:
            self._broken(delivery.partition, f"a delivery goes on behind commit {was.position - 1} of another chain")

    def _next(self, entry: SinkEntry, partition: str, state: dict[str, Contents], *, upto: str | None = None) -> int:
        """The number of the commit that the sink needs next, once it has begun all redeliveries, or those up to one."""
        found, part = state.get(partition), entry.part(partition)
        row = None if found is None else found.row
        if row is None or not row.home or row.life != entry.life:
            return part.start
        terms = [entry.term, *(redo.term for redo in part.redos)]
        begun = terms.index(row.term) if row.term in terms else 0
        last = len(terms) - 1 if upto is None or upto not in terms else terms.index(upto)
        return min([row.position, *(redo.start for redo in part.redos[begun:last])])

    # At the end

    def tip(self, partition: str) -> int:
        """How many commits the partition has."""
        return len(self._commits.get(partition, {}))

    def behind(self, partitions: Iterable[str]) -> str | None:
        """Why the sink is not where the chain is; None: it is."""
        entry = self.entry
        if entry is None:
            return "the sink is not registered"
        for partition in partitions:
            tip = len(self._commits.get(partition, {}))
            if tip and (needed := self._next(entry, partition, self.database.contents)) < tip:
                return f"partition {partition}: the sink needs {needed}, the chain has {tip} commits"
        return None

    def all_delivered(self, partitions: Iterable[str]) -> None:
        """All hosts have stopped: each committed row is in the sink once, and once more for each redelivery."""
        if (why := self.behind(partitions := list(partitions))) is not None or self.entry is None:
            self._report(f"at the end, {why}")
            return
        replaces = self.database.options.on_reset == "replace"
        for partition in partitions:
            (self._all_replaced if replaces else self._all_once)(self.entry, partition)
        if self.database.options.mode == "upsert":
            self._newest_of_each_key(self.entry, partitions)

    def _all_replaced(self, entry: SinkEntry, partition: str) -> None:
        """The rows to which the chain leads, each once."""
        expected: list[Row] = []
        for number, commit in sorted(self._commits.get(partition, {}).items()):
            if number < entry.part(partition).start:
                continue
            if (to := commit.reset_to) is not None:
                self.seen["sink_replaced"] += sum(row["_sequence"] > to for row in expected)
                expected = [row for row in expected if row["_sequence"] <= to]
            expected += commit.rows
        contents = self.database.contents.get(partition, Contents())
        found = [
            row
            for _, blocks in sorted(contents.blocks.items())
            for block in blocks
            if block.life == entry.life
            for row in block.rows
        ]
        if found != expected:
            self._broken(partition, f"holds {len(found)} rows at the end, the chain leads to {len(expected)} others")
        self.seen["sink_commits"] += len(self._commits.get(partition, {}))

    def _newest_of_each_key(self, entry: SinkEntry, partitions: Iterable[str]) -> None:
        newest: dict[Key, tuple[str, int, Row]] = {}
        for partition in sorted(partitions, key=lambda name: self._depths.get(name, 0)):
            for number, commit in sorted(self._commits.get(partition, {}).items()):
                for row in commit.rows:
                    newest[tuple(row[column] for column in self.database.options.key)] = partition, number, row
        for key, (partition, number, row) in newest.items():
            if number < entry.part(partition).start:
                continue  # it may have been trimmed while there was no sink
            found = self.database.held.keyed.get(key)
            if found is None or found[1] != row:
                self._broken(partition, f"key {key} has {found} at the end, not that of commit {number}: {row}")
                return
            self.seen["sink_keys"] += 1

    def _all_once(self, entry: SinkEntry, partition: str) -> None:
        part, contents = entry.part(partition), self.database.contents.get(partition, Contents())
        order = {term: at for at, term in enumerate([entry.term, *(redo.term for redo in part.redos)])}
        latest = -1
        for number, committed in sorted(self._commits.get(partition, {}).items()):
            if number < part.start:
                continue
            blocks = [block for block in contents.blocks.get(number, ()) if block.life == entry.life]
            terms = [order[block.term] for block in blocks]
            if not blocks or len(set(terms)) != len(terms) or any(block.rows != committed.rows for block in blocks):
                self._broken(partition, f"commit {number} is in the sink in terms {terms}, at the end")
                return
            if terms[-1] < latest:
                self._broken(partition, f"commit {number} was left out of redelivery {latest}")
            latest = terms[-1]
            self.seen["sink_commits"] += 1
            self.seen["sink_repeated"] += len(terms) - 1

    def _broken(self, partition: str, what: str) -> None:
        self._report(f"partition {partition}: sink: {what}")
